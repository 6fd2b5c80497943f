#pragma once
#include <pianola/core/export.hpp>

#include <memory>
#include <string>
#include <vector>

namespace torch {
struct CapturedTraceback;
}

namespace pianola::trace {

/// The stack at one operation, kept as bare addresses (about 0.2 to 0.7 us to take) and named only when asked for.
class CallSite {
 public:
  CallSite() = default;
  /// Takes this thread's C++ frames and, where Python runs it, its Python frames.
  static CallSite here();

  [[nodiscard]] bool empty() const noexcept { return frames_.empty(); }

  /// Python files under this folder ("/.../site-packages/torch/") are not the user's. For Python packages, at import.
  PIANOLA_API static void hide_python_files(std::string folder);

  /// The innermost frame that is the user's: "train_step at loss.cpp:88"; without debug information the function alone;
  /// empty where nothing is known. Slow (tens of ms): reads debug information. Never throws.
  [[nodiscard]] std::string describe() const;

 private:
  std::vector<void*> frames_;
  std::shared_ptr<torch::CapturedTraceback> python_;
};

}  // namespace pianola::trace
