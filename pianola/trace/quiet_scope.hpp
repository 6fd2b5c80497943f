#pragma once
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace pianola::trace {

/// While it lives, ATen calls of this thread are plain work: not recorded, not differentiated, not autocast, and hidden
/// from Python's modes. For Pianola's own calls in the middle of the user's step.
class QuietScope {
 public:
  QuietScope() : exclude_(c10::autocast_dispatch_keyset | c10::python_ks) {}
  QuietScope(const QuietScope&) = delete;
  QuietScope& operator=(const QuietScope&) = delete;
  ~QuietScope() = default;

 private:
  at::DisableRecordFunctionGuard unrecorded_;
  at::NoGradGuard no_grad_;
  c10::impl::ExcludeDispatchKeyGuard exclude_;
};

}  // namespace pianola::trace
