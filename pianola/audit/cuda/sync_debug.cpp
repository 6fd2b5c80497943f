#include <pianola/audit/cuda/sync_debug.hpp>

#include <dlfcn.h>

#include <string_view>
#include <utility>

namespace pianola::auditing {

SyncDebug::SyncDebug(std::function<void()> on_wait)
    : on_wait_(std::move(on_wait)),
      mode_before_(c10::cuda::warning_state().get_sync_debug_mode()),
      outer_(c10::WarningUtils::get_warning_handler()) {
  c10::WarningUtils::set_warning_handler(this);
  c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_WARN);
}

SyncDebug::~SyncDebug() {
  c10::cuda::warning_state().set_sync_debug_mode(mode_before_);
  c10::WarningUtils::set_warning_handler(outer_);
}

bool SyncDebug::works() noexcept {
  static const bool python = dlsym(RTLD_DEFAULT, "Py_IsInitialized") != nullptr;
  return !python;
}

void SyncDebug::process(const c10::Warning& warning) {
  const std::string_view text = warning.msg();
  if (text.find("synchronizing CUDA operation") != std::string_view::npos) {
    on_wait_();
  } else {
    outer_->process(warning);
  }
}

}  // namespace pianola::auditing
