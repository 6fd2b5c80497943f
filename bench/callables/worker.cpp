#include "callables/worker.hpp"

#include "callables/prepared_case.hpp"
#include "machine.hpp"

#include <pianola/core/error.hpp>

#if PIANOLA_WITH_CUDA
#include "cuda/device.hpp"
#include "cuda/device_info.hpp"
#endif

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <exception>
#include <istream>
#include <map>
#include <ostream>

namespace pianola::bench {
namespace {

using Json = nlohmann::ordered_json;

void synchronize() {
#if PIANOLA_WITH_CUDA
  if (cuda::is_available()) cuda::synchronize();
#endif
}

Json describe() {
  Json answer;
  for (const auto& [key, value] : describe_machine()) answer[key] = value;
  return answer;
}

PreparedCase prepare(const Json& request) {
  const c10::Device device(request.at("device").get<std::string>());
  const auto kind = request.at("kind").get<std::string>();
  const auto model = request.at("model").get<std::string>();
  if (kind == "callable") return prepare_callable(model, request.at("parameters").get<std::int64_t>(), device);
  if (kind == "training") return prepare_training(model, device);
  throw UsageError({.what = fmt::format("kind must be callable or training, got '{}'", kind)});
}

class Worker {
 public:
  Json answer(const Json& request) {
    const auto action = request.at("do").get<std::string>();
    if (action == "describe") return describe();
    if (action == "prepare") {
      PreparedCase& made = cases_[request.at("case").get<std::string>()] = prepare(request);
      synchronize();
      return {{"check", made.check}};
    }
    if (action == "measure") return measure(request);
    if (action == "release") {
      synchronize();
      cases_.clear();
      return Json::object();
    }
    throw UsageError({.what = fmt::format("do must be describe, prepare, measure or release, got '{}'", action)});
  }

 private:
  Json measure(const Json& request) {
    const auto times = time_bursts(contender(request.at("case"), request.at("contender")), synchronize,
                                   request.at("iterations").get<int>(), request.at("burst").get<int>());
    return {{"host", times.host}, {"wall", times.wall}};
  }

  const Contender& contender(const std::string& name, const std::string& wanted) const {
    const auto found = cases_.find(name);
    if (found == cases_.end()) throw UsageError({.what = fmt::format("case '{}' was not prepared", name)});
    const auto& all = found->second.contenders;
    const auto one = std::find_if(all.begin(), all.end(), [&](const Contender& each) { return each.name == wanted; });
    if (one == all.end()) throw UsageError({.what = fmt::format("case '{}' has no contender '{}'", name, wanted)});
    return *one;
  }

  std::map<std::string, PreparedCase> cases_;
};

Json answer_or_error(Worker& worker, const std::string& line) {
  try {
    return worker.answer(Json::parse(line));
  } catch (const std::exception& error) {
    return {{"error", error.what()}};
  }
}

}  // namespace

void serve(std::istream& requests, std::ostream& answers) {
  Worker worker;
  for (std::string line; std::getline(requests, line);) answers << answer_or_error(worker, line).dump() << std::endl;
}

}  // namespace pianola::bench
