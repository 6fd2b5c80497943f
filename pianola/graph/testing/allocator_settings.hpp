#pragma once
#include <c10/core/AllocatorConfig.h>
#include <gtest/gtest.h>

#include <string>

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

/// While it lives, torch's allocator makes expandable segments.
class WithExpandableSegments {
 public:
  WithExpandableSegments() : before_(c10::CachingAllocator::getAllocatorSettings()) { set("True"); }
  WithExpandableSegments(const WithExpandableSegments&) = delete;
  WithExpandableSegments& operator=(const WithExpandableSegments&) = delete;
  ~WithExpandableSegments() {
    if (before_.find("expandable_segments") == std::string::npos) {
      set("False");
    } else {
      c10::CachingAllocator::setAllocatorSettings(before_);
    }
  }

 private:
  void set(const std::string& value) const {
    c10::CachingAllocator::setAllocatorSettings((before_.empty() ? "" : before_ + ",") +
                                                "expandable_segments:" + value);
  }
  std::string before_;
};

}  // namespace pianola::testing
