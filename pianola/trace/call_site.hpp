#pragma once
#include <pianola/core/export.hpp>
#include <pianola/core/source_place.hpp>

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace torch {
struct CapturedTraceback;
namespace jit {
struct StackEntry;
}
}  // namespace torch

namespace pianola::trace {

/// The stack at one operation, kept as bare addresses (about 0.2 to 0.7 us to take) and named only when asked for.
class CallSite {
 public:
  CallSite() = default;
  /// Takes this thread's C++ frames and, where Python or TorchScript runs it, theirs; those that can be had. A place is a
  /// courtesy: where the stack cannot be unwound it is unknown, and nothing fails for it. No code of Python runs, so that an
  /// exception that is pending in its interpreter stays.
  static CallSite here() noexcept;
  /// While one lives, here() takes nothing on this thread: for Pianola's own steps, as torch's unwinder reads the tables of all libraries.
  class Off {
   public:
    Off() noexcept;
    Off(const Off&) = delete;
    Off& operator=(const Off&) = delete;
    ~Off();

   private:
    bool before_;
  };
  /// The same of C++ frames that were taken before: return addresses, from the innermost on. Without `script`, no frames
  /// of Python are taken, for which this thread may have to wait for the interpreter's lock.
  static CallSite of(std::vector<void*> frames, bool script) noexcept;

  [[nodiscard]] bool empty() const noexcept { return frames_.empty(); }

  /// Python files under this folder ("/.../site-packages/torch/") are not the user's. For Python packages, at import.
  PIANOLA_API static void hide_python_files(std::string folder);

  /// The innermost frame that is the user's: "train_step at loss.cpp:88"; without debug information the function alone;
  /// empty where nothing is known. Slow (tens of ms): reads debug information. Never throws.
  [[nodiscard]] std::string describe() const { return place().text(); }
  /// The same in its parts.
  [[nodiscard]] SourcePlace place() const;
  /// Whether the innermost C++ frame, one that was inlined included, is a function of such a namespace ("at::"); not where
  /// there is no debug information to tell. As slow as place(). Never throws.
  [[nodiscard]] bool begins_in(std::initializer_list<std::string_view> namespaces) const;
  /// Frames of Python or TorchScript, innermost first, also those of packages; empty where neither runs. Never throws.
  [[nodiscard]] std::vector<SourcePlace> script_frames() const;
  /// Frames of C++, innermost first, also those of libraries, with their arguments and as far as they have names. Slow.
  /// Never throws.
  [[nodiscard]] std::vector<SourcePlace> native_frames() const;

 private:
  std::vector<void*> frames_;
  std::shared_ptr<torch::CapturedTraceback> python_;
  std::shared_ptr<const std::vector<torch::jit::StackEntry>> torchscript_;  // outermost first; where there is no Python
};

}  // namespace pianola::trace
