#pragma once
#include <c10/core/AllocatorConfig.h>
#include <gtest/gtest.h>

/// Of a test on CUDA: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True leaves nothing to show, since torch refuses pools that sleep then,
/// and makes no fragments.
#define PIANOLA_SKIP_WITH_EXPANDABLE_SEGMENTS()                                                  \
  if (on_cuda() && c10::CachingAllocator::AcceleratorAllocatorConfig::use_expandable_segments()) \
  GTEST_SKIP() << "expandable segments"
