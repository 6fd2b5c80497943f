#pragma once
#include <c10/core/AllocatorConfig.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

/// Of a test on CUDA: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True leaves nothing to show, since torch refuses pools that sleep then,
/// and makes no fragments.
#define PIANOLA_SKIP_WITH_EXPANDABLE_SEGMENTS() \
  if (on_cuda() && ::pianola::testing::torch_makes_expandable_segments()) GTEST_SKIP() << "expandable segments"

namespace pianola::testing {

/// Whether torch's allocator does so now.
[[nodiscard]] inline bool torch_makes_expandable_segments() {
  return c10::CachingAllocator::AcceleratorAllocatorConfig::use_expandable_segments();
}

/// What a test expects of torch's allocator, by its segments.
template <class T>
[[nodiscard]] T by_segments(T fixed, T expandable) {
  return torch_makes_expandable_segments() ? expandable : fixed;
}

/// While it lives, torch's allocator is set so, as by PYTORCH_CUDA_ALLOC_CONF, besides what is asked of it already.
class WithAllocatorSettings {
 public:
  /// @param settings, default_settings  "max_split_size_mb:32", and what it is where nothing is asked.
  WithAllocatorSettings(const std::string& settings, std::string default_settings)
      : before_(c10::CachingAllocator::getAllocatorSettings()), default_(std::move(default_settings)) {
    set(settings);
  }
  WithAllocatorSettings(const WithAllocatorSettings&) = delete;
  WithAllocatorSettings& operator=(const WithAllocatorSettings&) = delete;
  ~WithAllocatorSettings() {
    const std::string key = default_.substr(0, default_.find(':'));
    if (before_.find(key) == std::string::npos) {
      set(default_);
    } else {
      c10::CachingAllocator::setAllocatorSettings(before_);
    }
  }

 private:
  void set(const std::string& settings) const {
    c10::CachingAllocator::setAllocatorSettings((before_.empty() ? "" : before_ + ",") + settings);
  }
  std::string before_, default_;
};

/// While it lives, torch's allocator makes expandable segments.
class WithExpandableSegments : WithAllocatorSettings {
 public:
  WithExpandableSegments() : WithAllocatorSettings("expandable_segments:True", "expandable_segments:False") {}
};

}  // namespace pianola::testing
