#include <pianola/training/iteration_cache.hpp>

#include <pianola/core/error.hpp>
#include <pianola/training/rng_tracker.hpp>

#include <utility>

namespace pianola::training {
namespace {

// A graph draws from the streams that it was captured with, whatever is forked around its replay.
void refuse_forks() {
  if (RngTracker::forks_open() == 0) return;
  throw UsageError({.what =
                        "an iteration was called while a random stream is forked: its graph would draw from the stream "
                        "that it was captured with",
                    .fix = "fork inside the step"});
}

IterationInfo info_of(Stage stage, SignatureInfo one) {
  IterationInfo info{.stage = stage,
                     .signature = std::move(one.signature),
                     .state = one.state,
                     .eager_calls = one.eager_calls,
                     .replays = one.replays,
                     .recaptures = one.recaptures,
                     .reason = std::move(one.reason)};
  if (!one.branches.empty()) info.branches = std::move(one.branches.front());
  return info;
}

}  // namespace

callable::CacheOptions cache_options(const FullIterationOptions& options) {
  return {{.warmup = options.warmup,
           .capacity = options.capacity,
           .max_in_flight = 1,
           .output = options.output,
           .pool = options.pool,
           .generators = options.generators,
           .memory_limit = options.memory_limit,
           .plan_memory = options.plan_memory,
           .accept_capture_path = options.accept_capture_path,
           .branches = options.branches,
           .islands = IslandPolicy::marked,
           .parallel = options.parallel,
           .mode = options.mode,
           .on_fallback = options.on_fallback},
          {.owner = "pianola::FullIteration",
           .noun = "iteration",
           .functions = 2,
           .whole_iterations = true,
           .strict = !options.eager_fallback,
           .check = options.check,
           .names = options.names,
           .check_call = &refuse_forks}};
}

FullIterationInfo info_of(const callable::SignatureCache& cache) {
  FullIterationInfo info{.pool_bytes = cache.pool_bytes(), .input_bytes = cache.input_bytes()};
  for (const Stage stage : {Stage::training, Stage::validation}) {
    GraphedInfo known = cache.info(static_cast<std::size_t>(stage));
    info.evictions += known.evictions;
    for (SignatureInfo& one : known.signatures) info.signatures.push_back(info_of(stage, std::move(one)));
  }
  return info;
}

}  // namespace pianola::training
