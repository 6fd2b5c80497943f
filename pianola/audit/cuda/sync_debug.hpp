#pragma once
#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>

#include <functional>

namespace pianola::auditing {

/// While it lives, torch's sync debug mode is on, and what torch itself waits for on this thread is told to `on_wait`
/// instead of being printed. Sees less than CUPTI: no waits of other code, nor torch.cuda.synchronize(). In Python each
/// call has a handler of its own for warnings: there it would only print them.
class SyncDebug final : public c10::WarningHandler {
 public:
  explicit SyncDebug(std::function<void()> on_wait);
  SyncDebug(const SyncDebug&) = delete;
  SyncDebug& operator=(const SyncDebug&) = delete;
  ~SyncDebug() override;

  /// Whether it would see anything: there is no Python in this process.
  [[nodiscard]] static bool works() noexcept;

  void process(const c10::Warning& warning) override;

 private:
  std::function<void()> on_wait_;
  c10::cuda::SyncDebugMode mode_before_;
  c10::WarningHandler* outer_;
};

}  // namespace pianola::auditing
