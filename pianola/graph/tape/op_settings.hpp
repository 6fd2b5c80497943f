#pragma once
#include <pianola/graph/default_dtype.hpp>

#include <ATen/core/grad_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/typeid.h>

namespace pianola::graph {

/// What some kernels choose by, beside their arguments: of the step as it was when the settings are made.
struct OpSettings {
  bool grad_mode = at::GradMode::is_enabled();
  caffe2::TypeMeta default_dtype = c10::get_default_dtype();  ///< The process's.
};

/// Enters settings one after the other; at its end the first ones are there again.
class SettingsOfOps {
 public:
  void enter(const OpSettings& settings) {
    at::GradMode::set_enabled(settings.grad_mode);
    default_dtype_.become(settings.default_dtype);
  }

 private:
  at::AutoGradMode before_{at::GradMode::is_enabled()};
  DefaultDtype default_dtype_;
};

}  // namespace pianola::graph
