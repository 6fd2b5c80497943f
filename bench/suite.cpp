#include "suite.hpp"

#include "benchmark.hpp"
#include "machine.hpp"
#include "output.hpp"

#include <pianola/core/error.hpp>

#if PIANOLA_WITH_CUDA
#include "cuda/device_info.hpp"
#endif

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <fstream>
#include <iterator>
#include <ostream>
#include <span>
#include <string_view>
#include <system_error>

namespace pianola::bench {
namespace {

const Benchmark kBenchmarks[] = {
    {"cpu/tape_training_step", "Training step of an MLP on one thread: the tape against eager C++",
     cpu::tape_training_step},
    {"cpu/trace_overhead", "Forward of an MLP on one thread, with and without a trace of its operations",
     cpu::trace_overhead},
    {"cpu/callable_training_step", "Training step of an MLP on one thread: a graphed callable against eager C++",
     cpu::callable_training_step},
    {"cpu/full_iteration", "Training iteration of an MLP on one thread, optimizer and all: the tape against eager C++",
     cpu::full_iteration},
    {"cpu/profile_million_events", "A trace of a million events: read, analysed and judged",
     cpu::profile_million_events},
    {"cpu/audit_cost", "Training step of an MLP on one thread, plain and audited", cpu::audit_cost},
    {"cpu/verify_cost", "verify() of a captured training step on one thread, beside the steps that it runs",
     cpu::verify_cost},
#if PIANOLA_WITH_CUDA
    {"cuda/replay_host", "Host time of Graph::replay(), with and without random numbers", cuda::replay_host},
    {"cuda/training_step", "Training step of an MLP: eager and replayed", cuda::training_step},
    {"cuda/capture_time", "Capture of a training step, without warm-up", cuda::capture_time},
    {"cuda/failed_capture", "Memory that failed captures leave behind", cuda::failed_capture},
    {"cuda/trace_overhead", "Launch-bound forward, with and without a trace of its operations", cuda::trace_overhead},
    {"cuda/callable_host", "Host time of a graphed callable, forward and backward, by its number of parameters",
     cuda::callable_host},
    {"cuda/callable_memory", "Memory of a pipeline stage's graphed callables", cuda::callable_memory},
    {"cuda/branches", "Launch-bound steps as captured, and in parallel branches; products in TF32", cuda::branches},
    {"cuda/branches_large", "Steps that fill the device as captured, and in parallel branches; products in TF32",
     cuda::branches_large},
    {"cuda/branches_capture", "Capture with parallel branches: host time and memory", cuda::branches_capture},
    {"cuda/full_iteration", "Whole training iterations, optimizer and all: one graph, a graph of a part, and eager",
     cuda::full_iteration},
    {"cuda/static_inputs", "Batches that travel while the device works on the one before", cuda::static_inputs},
    {"cuda/finite_watch", "What the deferred check for NaN and infinity costs a captured iteration",
     cuda::finite_watch},
    {"cuda/islands",
     "A read of a value in the middle of a step, against two graphs by hand; what a part that stays eager costs",
     cuda::islands},
    {"cuda/audit_cost", "Launch-bound training step, plain and audited", cuda::audit_cost},
    {"cuda/strict_replay", "Host time of Graph::replay() by the number of tensors from outside: standard and strict",
     cuda::strict_replay},
    {"cuda/verify_cost", "verify() of a captured training step, beside the steps that it runs", cuda::verify_cost},
    // The last one: what it records with stays attached to the process and slows launches.
    {"cuda/scopes", "A training step in each scope of graphs", cuda::scopes, /*has_traces=*/true},
#endif
};

bool has_cuda() {
#if PIANOLA_WITH_CUDA
  return cuda::is_available();
#else
  return false;
#endif
}

void check(const Options& options) {
  if (options.device != "auto" && options.device != "cpu" && options.device != "cuda") {
    throw UsageError({.what = fmt::format("device must be auto, cpu or cuda, got '{}'", options.device)});
  }
  if (options.blocks < 1) throw UsageError({.what = fmt::format("blocks must be 1 or more, got {}", options.blocks)});
  if (options.device == "cuda" && !has_cuda()) {
    throw DeviceError({.what = "there is no CUDA device to run the benchmarks on",
                       .fix = "run on a machine with a GPU and a torch with CUDA, or choose the device cpu"});
  }
}

bool matches(std::string_view name, const std::string& filter) {
  const auto is_filter = [&](const Benchmark& other) { return filter == other.name; };
  // The name of one may begin another's.
  if (std::any_of(std::begin(kBenchmarks), std::end(kBenchmarks), is_filter)) return name == filter;
  return name.find(filter) != std::string_view::npos;
}

bool is_selected(const Benchmark& benchmark, const Options& options) {
  const std::string_view name = benchmark.name;
  if (!matches(name, options.filter)) return false;
  if (options.device != "auto") return name.starts_with(options.device + "/");
  return !name.starts_with("cuda/") || has_cuda();
}

std::vector<const Benchmark*> selected(const Options& options) {
  check(options);
  std::vector<const Benchmark*> chosen;
  for (const Benchmark& benchmark : kBenchmarks) {
    if (is_selected(benchmark, options)) chosen.push_back(&benchmark);
  }
  return chosen;
}

// Known before anything has run, which takes minutes.
void check_traces(const std::filesystem::path& folder, std::span<const Benchmark* const> chosen) {
  if (folder.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error || access(folder.c_str(), W_OK) != 0) {
    throw UsageError({.what = fmt::format("cannot write traces into '{}'", folder.string()),
                      .fix = "name a folder that can be made or written to"});
  }
  if (std::none_of(chosen.begin(), chosen.end(), [](const Benchmark* one) { return one->has_traces; })) {
    throw UsageError({.what = fmt::format("none of the {} benchmarks has traces to write", chosen.size()),
                      .fix = "choose cuda/scopes, on a machine with a GPU, or ask for no traces"});
  }
}

Result run_one(const Benchmark& benchmark, const Settings& settings) {
  Result result{.benchmark = benchmark.name, .title = benchmark.title, .cases = {}};
  try {
    result.cases = benchmark.run(settings);
  } catch (const std::exception& error) {
    result.error = error.what();
  }
  return result;
}

void write_json(const Options& options, std::span<const Result> results) {
  std::ofstream file(options.json);
  file << to_json(results, describe_machine(), options.command);
  file.close();
  if (!file) throw UsageError({.what = fmt::format("cannot write '{}'", options.json.string())});
}

}  // namespace

std::vector<std::string> names(const Options& options) {
  std::vector<std::string> names;
  for (const Benchmark* benchmark : selected(options)) names.emplace_back(benchmark->name);
  return names;
}

std::vector<Result> run(const Options& options, std::ostream& out) {
  const std::vector<const Benchmark*> chosen = selected(options);
  if (chosen.empty()) {
    throw UsageError({.what = fmt::format("no benchmark has '{}' in its name", options.filter),
                      .fix = "leave the filter out to run all of them"});
  }
  check_traces(options.traces, chosen);
  const Settings settings{
      .blocks = options.quick ? 2 : options.blocks, .quick = options.quick, .traces = options.traces};
  std::vector<Result> results;
  for (const Benchmark* benchmark : chosen) {
    results.push_back(run_one(*benchmark, settings));
    out << to_text(results.back()) << std::endl;
  }
  if (!options.json.empty()) write_json(options, results);
  return results;
}

}  // namespace pianola::bench
