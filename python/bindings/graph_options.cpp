#include <bindings/graph_options.hpp>

#include <pianola/core/error.hpp>

#include <utility>

namespace pianola::python {

CaptureMode capture_mode(const std::string& name) {
  if (name == "global") return CaptureMode::global;
  if (name == "thread_local") return CaptureMode::thread_local_;
  if (name == "relaxed") return CaptureMode::relaxed;
  throw UsageError(
      {.what = "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got " + name});
}

CheckMode check_mode(const std::string& name) {
  if (name == "standard") return CheckMode::standard;
  if (name == "strict") return CheckMode::strict;
  throw UsageError({.what = "check must be 'standard' or 'strict', got '" + name + "'"});
}

GraphPoolRef pool_of(c10::Device device, const std::optional<PoolId>& id) {
  return id ? GraphPoolRef(GraphPool(device, *id)) : GraphPoolRef();
}

int branches_of(const Lanes& lanes) {
  if (const int* number = std::get_if<int>(&lanes)) return *number;
  const std::string& word = std::get<std::string>(lanes);
  if (word == "auto") return kAutoBranches;
  throw UsageError({.what = "branches must be a number of lanes or 'auto', got '" + word + "'"});
}

CaptureOptions make_capture_options(c10::Device device, int warmup, const std::optional<PoolId>& pool,
                                    std::vector<at::Generator> generators, std::vector<at::Tensor> inputs,
                                    const Lanes& branches, const std::optional<ParallelOptions>& parallel,
                                    const std::string& mode, bool restore, bool trace, std::size_t memory_limit,
                                    bool plan_memory, bool accept_capture_path, bool instantiate, bool allow_empty,
                                    std::optional<c10::Stream> stream, const std::string& check,
                                    const std::map<std::string, at::Tensor>& names) {
  std::vector<NamedTensor> named;
  for (const auto& [name, tensor] : names) named.push_back({.name = name, .tensor = tensor});
  return {.warmup = warmup,
          .pool = pool_of(device, pool),
          .generators = std::move(generators),
          .inputs = std::move(inputs),
          .branches = branches_of(branches),
          .parallel = parallel.value_or(ParallelOptions()),
          .check = check_mode(check),
          .names = std::move(named),
          .mode = capture_mode(mode),
          .restore = restore,
          .trace = trace,
          .memory_limit = memory_limit,
          .plan_memory = plan_memory,
          .accept_capture_path = accept_capture_path,
          .instantiate = instantiate,
          .allow_empty = allow_empty,
          .stream = stream};
}

}  // namespace pianola::python
