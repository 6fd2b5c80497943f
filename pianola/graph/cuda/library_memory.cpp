#include <pianola/graph/cuda/library_memory.hpp>

#include <pianola/parallel/kernel_pointers.hpp>

#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace pianola::graph {
namespace {

// And everything that torch's allocator has of all devices.
parallel::SpanIndex with_memory_of_torch(std::vector<ByteSpan> segments) {
  for (const auto& segment : c10::cuda::CUDACachingAllocator::snapshot({0, 0}, /*include_traces=*/false).segments) {
    segments.push_back({.begin = segment.address, .end = segment.address + segment.total_size});
  }
  return parallel::SpanIndex(merged(std::move(segments)));
}

// Where the driver does not tell an allocation's ends: what it hands out comes in such pieces.
constexpr std::uintptr_t kPiece = std::uintptr_t{2} << 20U;

// The allocation that an address lies in, on a device or pinned; empty where it lies in none.
ByteSpan allocation_at(std::uintptr_t address, const Driver& driver) {
  CUmemorytype type = {};
  if (driver.pointer_get_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) != CUDA_SUCCESS ||
      (type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_HOST)) {
    return {};
  }
  CUdeviceptr begin = 0;
  std::size_t bytes = 0;
  if (driver.pointer_get_attribute(&begin, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address) != CUDA_SUCCESS ||
      driver.pointer_get_attribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address) != CUDA_SUCCESS) {
    const std::uintptr_t piece = address / kPiece * kPiece;
    return {.begin = piece, .end = piece + kPiece};
  }
  return {.begin = begin, .end = begin + bytes};
}

// Device addresses are canonical, and none is this small: spares the driver most words that are numbers.
bool may_be_address(std::uintptr_t word) {
  return word >= (std::uintptr_t{1} << 24U) && word < (std::uintptr_t{1} << 48U);
}

}  // namespace

std::vector<ByteSpan> library_memory(const GraphTopology& graph, std::vector<ByteSpan> allocated,
                                     const Driver& driver) {
  const parallel::SpanIndex torchs = with_memory_of_torch(std::move(allocated));
  std::unordered_set<std::uintptr_t> seen;
  std::vector<ByteSpan> found;
  for (const GraphNode& node : graph.nodes()) {
    parallel::for_each_touched(node, [&](ByteSpan bytes) {
      if (!may_be_address(bytes.begin) || torchs.overlaps(bytes) || !seen.insert(bytes.begin).second) return;
      const auto holds = [&](const ByteSpan& known) { return known.contains(bytes.begin); };
      if (std::any_of(found.begin(), found.end(), holds)) return;
      if (const ByteSpan allocation = allocation_at(bytes.begin, driver); !allocation.empty()) {
        found.push_back(allocation);
      }
    });
  }
  return merged(std::move(found));
}

}  // namespace pianola::graph
