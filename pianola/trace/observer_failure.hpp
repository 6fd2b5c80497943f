#pragma once
#include <pianola/core/error.hpp>

#include <mutex>
#include <optional>
#include <string>

namespace pianola::trace {

// Note [An observer that throws]
// RecordFunction swallows what its callbacks throw, so that an observer which missed a begin would be shown its end, and
// records would go on with a hole in them. So nothing leaves a callback: the first failure is kept for OpStream::failure(), and an
// observer that threw is shown nothing more. The others go on: what puts tensors back has to see all that is written.

/// The first exception that came out of an observer, or out of the stream that shows it operations. Threads: any.
class ObserverFailure {
 public:
  /// Keeps the exception that is being handled, if it is the first. @param op  Which operation it was shown: "aten::mul".
  void note(const std::string& op) noexcept;
  /// Why the records of the observers are not whole; nothing where all went well.
  [[nodiscard]] std::optional<Diagnosis> diagnosis() const;

 private:
  void describe(const std::string& op);

  mutable std::mutex mutex_;
  bool failed_ = false;
  bool found_no_memory_ = false;
  std::string what_;  // "aten::mul on: out of memory"
};

/// Throws what OpStream::failure() tells.
/// @throws CaptureError  Or OutOfMemoryError, where that is why.
[[noreturn]] void throw_failure(Diagnosis failure);

}  // namespace pianola::trace
