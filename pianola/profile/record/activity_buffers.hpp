#pragma once
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

namespace pianola::profiling {

struct BufferOptions {
  std::size_t bytes = std::size_t{1} << 19U;  ///< Of a buffer: some 4,000 records of a thread.
  std::size_t most = 256;                     ///< Of all there are; when all are in use, CUPTI drops records.
  std::size_t at_once = 16;                   ///< Made at the beginning, so that the program need not wait for pages.
};

/// The buffers that CUPTI fills with records: a bounded number, used over and over. They are handed out zeroed.
///
/// Threads: any; those that CUPTI calls on only take one from a list or put it on one.
class ActivityBuffers {
 public:
  explicit ActivityBuffers(const BufferOptions& options);
  ActivityBuffers(const ActivityBuffers&) = delete;
  ActivityBuffers& operator=(const ActivityBuffers&) = delete;
  /// Those that CUPTI still has are not freed.
  ~ActivityBuffers();

  struct Full {
    std::uint8_t* data = nullptr;
    std::size_t valid_bytes = 0;
  };

  /// An empty one for CUPTI; nullptr: all are in use.
  [[nodiscard]] std::uint8_t* request() noexcept;
  [[nodiscard]] std::size_t bytes() const noexcept { return options_.bytes; }
  /// Takes one back from CUPTI, with records.
  void complete(std::uint8_t* data, std::size_t valid_bytes) noexcept;

  /// The full one that came first; nothing where none came until then, or at wake().
  [[nodiscard]] std::optional<Full> wait_until(std::chrono::steady_clock::time_point time);
  /// Makes wait_until() return, now or when it is next called.
  void wake() noexcept;
  /// Makes a full one empty again.
  void recycle(std::uint8_t* data) noexcept;

  /// How many there are, in whoever's hands.
  [[nodiscard]] std::size_t count() const;

 private:
  const BufferOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::uint8_t*> empty_;
  std::vector<Full> full_;  // in the order in which they came
  std::size_t count_ = 0;
  bool woken_ = false;
};

}  // namespace pianola::profiling
