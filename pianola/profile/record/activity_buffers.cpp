#include <pianola/profile/record/activity_buffers.hpp>

#include <cstdlib>
#include <cstring>

namespace pianola::profiling {

// Lists have room for all from the beginning: nothing is allocated, and nothing can throw, on CUPTI's threads.
ActivityBuffers::ActivityBuffers(const BufferOptions& options) : options_(options) {
  empty_.reserve(options.most);
  full_.reserve(options.most);
  for (; count_ < options.at_once && count_ < options.most; ++count_) {
    auto* data = static_cast<std::uint8_t*>(std::malloc(options.bytes));
    if (data == nullptr) break;
    std::memset(data, 0, options.bytes);  // which also makes the pages
    empty_.push_back(data);
  }
}

ActivityBuffers::~ActivityBuffers() {
  for (std::uint8_t* data : empty_) std::free(data);
  for (const Full& full : full_) std::free(full.data);
}

std::uint8_t* ActivityBuffers::request() noexcept {
  const std::lock_guard lock(mutex_);
  if (!empty_.empty()) {
    std::uint8_t* data = empty_.back();
    empty_.pop_back();
    return data;
  }
  if (count_ == options_.most) return nullptr;
  auto* data = static_cast<std::uint8_t*>(std::calloc(1, options_.bytes));
  if (data != nullptr) ++count_;
  return data;
}

void ActivityBuffers::complete(std::uint8_t* data, std::size_t valid_bytes) noexcept {
  const std::lock_guard lock(mutex_);
  full_.push_back({.data = data, .valid_bytes = valid_bytes});
  changed_.notify_all();
}

std::optional<ActivityBuffers::Full> ActivityBuffers::wait_until(std::chrono::steady_clock::time_point time) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, time, [this] { return !full_.empty() || woken_; });
  woken_ = false;
  if (full_.empty()) return std::nullopt;
  const Full first = full_.front();
  full_.erase(full_.begin());
  return first;
}

void ActivityBuffers::wake() noexcept {
  const std::lock_guard lock(mutex_);
  woken_ = true;
  changed_.notify_all();
}

void ActivityBuffers::recycle(std::uint8_t* data) noexcept {
  std::memset(data, 0, options_.bytes);
  const std::lock_guard lock(mutex_);
  empty_.push_back(data);
}

std::size_t ActivityBuffers::count() const {
  const std::lock_guard lock(mutex_);
  return count_;
}

}  // namespace pianola::profiling
