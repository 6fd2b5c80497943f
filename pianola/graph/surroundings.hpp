#pragma once
#include <pianola/graph/default_dtype.hpp>

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/typeid.h>

#include <optional>

namespace pianola::graph {

/// Autograd, autocast and the like of the user's code, as they are on this thread when it is made; and the process's default type.
class Surroundings {
 public:
  explicit Surroundings(c10::DeviceType device)
      : keys_(c10::impl::tls_local_dispatch_key_set()),
        grad_(at::GradMode::is_enabled()),
        device_(device),
        autocast_(at::autocast::is_autocast_enabled(device) ? at::autocast::get_autocast_dtype(device)
                                                            : c10::ScalarType::Undefined),
        default_dtype_(c10::get_default_dtype()) {}

  [[nodiscard]] bool grad() const noexcept { return grad_; }

  class Entered {
   public:
    explicit Entered(const Surroundings& surroundings)
        : keys_(surroundings.keys_), grad_(surroundings.grad_), device_(surroundings.device_) {
      default_dtype_.become(surroundings.default_dtype_);
      if (surroundings.autocast_ == c10::ScalarType::Undefined) return;
      before_ = at::autocast::get_autocast_dtype(device_);
      at::autocast::set_autocast_dtype(device_, surroundings.autocast_);
    }
    Entered(const Entered&) = delete;
    Entered& operator=(const Entered&) = delete;
    ~Entered() {
      if (!before_) return;
      at::autocast::set_autocast_dtype(device_, *before_);
      at::autocast::clear_cache();  // a replay is in no region, whose end would
    }

   private:
    at::DisableRecordFunctionGuard unrecorded_;
    c10::impl::ForceDispatchKeyGuard keys_;
    at::AutoGradMode grad_;
    c10::DeviceType device_;
    std::optional<c10::ScalarType> before_;
    DefaultDtype default_dtype_;
  };

 private:
  c10::impl::LocalDispatchKeySet keys_;
  bool grad_;
  c10::DeviceType device_;
  c10::ScalarType autocast_;
  caffe2::TypeMeta default_dtype_;
};

}  // namespace pianola::graph
