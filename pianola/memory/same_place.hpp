#pragma once
#include <pianola/core/export.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace pianola::memory {

/// Finds, while a step runs once more, which operation of an earlier run is at hand, where the two differ here and there: a library that
/// asks whether it is captured does a few other operations then.
///
/// It follows the earlier run from operation to operation. Where the next one is another, all places near by that look like it are
/// followed at once, until one of them has led on for a while and the others have not.
class PIANOLA_API SamePlace {
 public:
  /// @param operations  Of the earlier run; equal ones are the same operator.
  explicit SamePlace(std::vector<const void*> operations) : operations_(std::move(operations)) {}

  /// The next operation of this run.
  void advance(const void* operation);
  /// Its number in the earlier run, from 0; -1: none has begun; kUnknown: none is it, or several may be.
  static constexpr std::int64_t kUnknown = -2;
  [[nodiscard]] std::int64_t now() const noexcept { return now_; }

 private:
  struct Trail {
    std::int64_t at;
    std::size_t steps;  // that it has led on
  };
  void look_around(const void* operation);
  void choose();

  std::vector<const void*> operations_;
  std::vector<Trail> trails_ = {{.at = -1, .steps = kTrusted}};
  std::int64_t last_known_ = -1;
  std::size_t lost_for_ = 0;  // operations
  std::int64_t now_ = -1;

  static constexpr std::size_t kTrusted = 4;
};

}  // namespace pianola::memory
