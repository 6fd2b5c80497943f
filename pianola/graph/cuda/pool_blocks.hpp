#pragma once
#include <pianola/core/byte_span.hpp>

#include <c10/core/Device.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <cstddef>
#include <vector>

namespace pianola::graph {

/// The segments that a pool of torch's allocator has on a device, in the order of addresses.
std::vector<c10::cuda::CUDACachingAllocator::SegmentInfo> segments_of(c10::Device device, c10::MempoolId_t pool);

/// What somebody holds of a segment; of a block that a plan cut up, what is held inside.
std::vector<ByteSpan> held_in(const c10::cuda::CUDACachingAllocator::SegmentInfo& segment);

/// What empty_cache() gives back of a segment: all of it, once nobody holds any; of an expandable one each page that nobody has a byte of.
[[nodiscard]] std::size_t returnable_bytes(const c10::cuda::CUDACachingAllocator::SegmentInfo& segment);

}  // namespace pianola::graph
