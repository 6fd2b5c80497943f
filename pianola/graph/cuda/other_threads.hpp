#pragma once
#include <pianola/core/error.hpp>
#include <pianola/trace/call_site.hpp>

#include <cuda.h>

#include <memory>
#include <optional>
#include <string>

namespace pianola::graph {

/// While it lives, asks a capturing stream after every operation of threads that have no part in the step whether the
/// capture still stands: in CaptureMode::global an unsafe call of theirs breaks it. One at a time per process; a second
/// sees nothing.
class OtherThreads {
 public:
  explicit OtherThreads(CUstream capturing);
  OtherThreads(const OtherThreads&) = delete;
  OtherThreads& operator=(const OtherThreads&) = delete;
  ~OtherThreads();

  /// Sees nothing more; explain() goes on knowing what was seen.
  void stop() noexcept;

  /// What broke the capture, and where; nothing if no other thread's operation did.
  [[nodiscard]] std::optional<Diagnosis> explain() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace pianola::graph
