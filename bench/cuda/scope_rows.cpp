#include "cuda/scope_rows.hpp"

#include "cuda/device.hpp"
#include "models/mlp.hpp"
#include "self_cpu_time.hpp"

#include <pianola/profile/profile.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <utility>

namespace pianola::bench::cuda {
namespace {

constexpr int kCheckedSteps = 8;
constexpr int kBurst = 10;

constexpr const char* kEagerRow = "no graph";
constexpr const char* kTheirRow = "whole iteration, at::cuda::CUDAGraph";
constexpr const char* kOurs = "whole iteration, pianola::FullIteration";
constexpr const char* kCallable = "forward and backward, pianola::make_graphed_callable";
constexpr const char* kCallables = "forward and backward per layer, pianola::make_graphed_callables";

Training training(const TrainingCase& made, Graphed graphed) {
  return {made.model(), made.input.clone(), made.target.clone(), graphed};
}

Timer wall_timer() {
  return [](const std::function<void()>& iteration, int count) {
    return time_bursts({.name = "", .iteration = iteration}, synchronize, count, kBurst).wall;
  };
}

// "whole iteration, at::cuda::CUDAGraph" -> "whole_iteration_at_cuda_cudagraph".
std::string file_name(const std::string& contender) {
  std::string name;
  for (const char c : contender) {
    const bool is_word = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (is_word) name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (!is_word && !name.ends_with('_')) name += '_';
  }
  return name;
}

}  // namespace

ScopeRows::ScopeRows(std::string model, std::string title)
    : model_(std::move(model)),
      title_(std::move(title)),
      made_(training_case(model_, kDevice)),
      microbatches_({c10::ivalue::Tuple::create({made_.input, made_.target})}),
      eager_(training(made_, Graphed::nothing)),
      theirs_(training(made_, Graphed::nothing)),
      ours_(training(made_, Graphed::nothing)),
      callable_(training(made_, Graphed::whole)),
      callables_(training(made_, Graphed::per_layer)),
      full_iteration_([this](const std::vector<c10::IValue>& microbatches) -> c10::IValue {
        const auto& batch = microbatches.front().toTupleRef().elements();
        ours_.step(batch[0].toTensor(), batch[1].toTensor());
        return ours_.loss();
      }) {
  training(made_, Graphed::nothing).step();  // torch's capture needs libraries started on this stream
  torch_graph_ = torch_capture([this] { theirs_.step(); });
  check();
}

void ScopeRows::check() {
  const std::pair<const char*, const Training*> rows[] = {
      {kTheirRow, &theirs_}, {kOurs, &ours_}, {kCallable, &callable_}, {kCallables, &callables_}};
  const std::vector<Contender> all = contenders();
  for (int step = 0; step < kCheckedSteps; ++step) {
    for (const Contender& contender : all) contender.iteration();
    for (const auto& [name, row] : rows) check_equal(name, row->state(), eager_.state());
  }
}

// As one does by hand: the batch into the tensors that the graph reads, then the launch.
void ScopeRows::step_torch_graph() {
  theirs_.input().copy_(made_.input);
  theirs_.target().copy_(made_.target);
  torch_graph_->replay();
}

void ScopeRows::step_full_iteration() { (void)full_iteration_(microbatches_); }

std::vector<Contender> ScopeRows::contenders() {
  const auto step = [this](Training& training) {
    return [this, &training] { training.step(made_.input, made_.target); };
  };
  return {{kEagerRow, step(eager_)},
          {kTheirRow, [this] { step_torch_graph(); }},
          {kOurs, [this] { step_full_iteration(); }},
          {kCallable, step(callable_)},
          {kCallables, step(callables_)}};
}

Case ScopeRows::compare(const char* measure, const Timer& timer, const Plan& plan) {
  return {.name = title_,
          .measure = measure,
          .unit = "us",
          .baseline = kEagerRow,
          .iterations = plan.iterations,
          .series = interleave(timer, contenders(), plan)};
}

Case ScopeRows::wall_time(const Settings& settings) {
  Case result = compare("time per iteration, back to back", wall_timer(), settings.plan(kBurst));
  result.requirements = {at_least_speedup(result, kOurs, 1, kTheirRow)};
  result.notes = {"torch has no graphed callables in C++, and so no rows for forward and backward here"};
  return result;
}

Case ScopeRows::host_time(const Settings& settings) {
  return compare("host time of an iteration among others", middle_call_timer(synchronize, kBurst),
                 settings.plan(kBurst));
}

Case ScopeRows::compare_self_cpu(const char* measure, const Timer& timer, const Settings& settings) {
  Plan plan = settings.plan(kBurst);
  plan.blocks = std::min(plan.blocks, 10);  // a recording takes much longer than what it records
  return compare(measure, timer, plan);
}

std::vector<Case> ScopeRows::self_cpu_time(const Settings& settings) {
  Case total = compare_self_cpu("self CPU time per iteration as torch.profiler counts it",
                                self_cpu_timer(synchronize, Waits::counted), settings);
  total.requirements = {at_most_ratio(total, kOurs, 1 / 2.5)};
  total.notes = {"the host waits for the device at the end of a recording, and that wait counts as CPU time",
                 "torch.profiler does not record launches through the driver, as Pianola's: compare host times"};
  Case busy = compare_self_cpu("self CPU time per iteration without the wait for the device",
                               self_cpu_timer(synchronize, Waits::left_out), settings);
  return {std::move(total), std::move(busy)};
}

void ScopeRows::write_traces(const std::filesystem::path& folder) {
  for (const Contender& contender : contenders()) {
    (void)profile(contender.iteration,
                  {.iterations = 5, .trace = folder / fmt::format("{}_{}.json.gz", model_, file_name(contender.name))});
  }
}

}  // namespace pianola::bench::cuda
