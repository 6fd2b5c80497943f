#include <pianola/verify/verify.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/number_check.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/trace/plain_check.hpp>
#include <pianola/verify/devices.hpp>
#include <pianola/verify/verification.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace pianola {
namespace {

bool is_negative(const Tolerance& tolerance) {
  return !(tolerance.absolute >= 0 && tolerance.relative >= 0 && tolerance.ulps >= 0);
}

void check(const VerifyOptions& options) {
  check_at_least(1, "steps", options.steps);
  check_at_least(0, "graphed_warmup", options.graphed_warmup);
  for (const auto& [dtype, tolerance] : options.tolerance) {
    if (!is_negative(tolerance)) continue;
    throw UsageError(
        {.what = fmt::format("the tolerance of {} must be 0 or more, got absolute {}, relative {}, ulps {}",
                             c10::toString(dtype), tolerance.absolute, tolerance.relative, tolerance.ulps)});
  }
  if (const auto modes = trace::oddity_of_modes(); modes != trace::Oddity::none) {
    throw UsageError(trace::refuse_modes(modes, "verify()"));
  }
  for (const auto& set : options.inputs) {
    for (std::size_t i = 0; i < set.size(); ++i) {
      if (!set[i].defined()) continue;
      const auto odd = trace::oddity_in_step(set[i]);
      if (odd != trace::Oddity::none) throw UsageError(trace::refuse_input(odd, fmt::format("input {}", i), set[i]));
    }
  }
  const auto devices = verification::cuda_devices_in_use();
  if (is_capturing() || std::any_of(devices.begin(), devices.end(), verification::is_stream_captured)) {
    throw UsageError({.what = "verify() was called while a capture is open on this thread",
                      .fix = "verify outside of captures: it runs the steps and reads their results"});
  }
}

}  // namespace

VerifyReport verify(const VerifyStep& eager, const VerifyStep& graphed, const std::vector<NamedTensor>& state,
                    const VerifyOptions& options) {
  if (!eager || !graphed) throw UsageError({.what = fmt::format("the {} step is empty", eager ? "graphed" : "eager")});
  check(options);
  return verification::Verification(eager, graphed, state, options).run();
}

VerifyReport verify(const std::function<void()>& eager, const std::function<void()>& graphed,
                    const std::vector<NamedTensor>& state, const VerifyOptions& options) {
  if (!eager || !graphed) throw UsageError({.what = fmt::format("the {} step is empty", eager ? "graphed" : "eager")});
  if (!options.inputs.empty()) {
    throw UsageError({.what = "inputs were given, but the steps take none",
                      .fix = "write them into static tensors in `between`, or pass steps that take tensors"});
  }
  const auto without_results = [](const std::function<void()>& step) {
    return VerifyStep([&step](const std::vector<at::Tensor>& /*none*/) {
      step();
      return std::vector<at::Tensor>();
    });
  };
  return verify(without_results(eager), without_results(graphed), state, options);
}

}  // namespace pianola
