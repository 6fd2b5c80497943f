#include <pianola/graph/cuda/pool_reservation.hpp>

#include <pianola/core/error.hpp>
#include <pianola/graph/cuda/into_pool.hpp>
#include <pianola/graph/cuda/pool_blocks.hpp>
#include <pianola/memory/block.hpp>

#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <thread>

namespace pianola::graph {

namespace allocator = c10::cuda::CUDACachingAllocator;

namespace {

// torch serves requests up to this from other segments than larger ones (kSmallSize in its allocator).
constexpr std::size_t kSmallRequest = 1048576;
constexpr std::size_t kSmallestLargeRequest = kSmallRequest + 512;
constexpr int kTries = 3;

using Settings = c10::CachingAllocator::AcceleratorAllocatorConfig;

// Then a request of this size does not find a block of this size.
bool rounds_up(std::size_t bytes) { return Settings::roundup_power2_divisions(bytes) > 1; }

struct FreeBlock {
  ByteSpan span;
  std::uintptr_t used_to;  // the end of what captures have used of it; 0: they have not
  cudaStream_t stream;
  bool is_large;
};

// A piece of one, as torch hands it out.
struct Piece {
  std::size_t bytes;
  cudaStream_t stream;
};

std::uintptr_t end_of_use(const std::vector<ByteSpan>& used, const ByteSpan& block) {
  std::uintptr_t end = 0;
  for (const ByteSpan& span : used) {
    if (span.overlaps(block)) end = std::max(end, std::min(span.end, block.end));
  }
  return end;
}

// But for rests of large segments that are too small to serve any request, and for expandable segments where these have been switched
// off: then torch hands out nothing of them.
std::vector<FreeBlock> free_blocks(c10::Device device, c10::MempoolId_t pool, const std::vector<ByteSpan>& used) {
  std::vector<FreeBlock> blocks;
  for (const auto& segment : segments_of(device, pool)) {
    if (segment.is_expandable && !Settings::use_expandable_segments()) continue;
    std::uintptr_t begin = segment.address;
    for (const auto& block : segment.blocks) {
      const ByteSpan span = {.begin = begin, .end = begin + block.size};
      begin = span.end;
      if (block.active || (segment.is_large && block.size < kSmallestLargeRequest)) continue;
      blocks.push_back({.span = span,
                        .used_to = end_of_use(used, span),
                        .stream = static_cast<cudaStream_t>(segment.stream),
                        .is_large = segment.is_large});
    }
  }
  return blocks;
}

// What has to be asked for to have them all: small ones of more than a small request in two pieces. The largest first.
std::vector<Piece> pieces_of(const std::vector<FreeBlock>& blocks) {
  std::vector<Piece> pieces;
  for (const FreeBlock& block : blocks) {
    std::size_t left = block.span.size();
    while (!block.is_large && left > kSmallRequest) {
      pieces.push_back({.bytes = kSmallRequest, .stream = block.stream});
      left -= kSmallRequest;
    }
    pieces.push_back({.bytes = left, .stream = block.stream});
  }
  std::ranges::sort(pieces, std::ranges::greater{}, &Piece::bytes);
  return pieces;
}

// nullptr: torch has no memory for it.
void* ask_for(std::size_t bytes, cudaStream_t stream) {
  try {
    return allocator::raw_alloc_with_stream(bytes, stream);
  } catch (const c10::Error&) {
    return nullptr;
  }
}

using Pieces = std::map<std::uintptr_t, Piece>;  // by address

Pieces take_all(const std::vector<FreeBlock>& blocks) {
  Pieces taken;
  for (const Piece& piece : pieces_of(blocks)) {
    if (void* const memory = ask_for(piece.bytes, piece.stream))
      taken.emplace(reinterpret_cast<std::uintptr_t>(memory), piece);
  }
  return taken;
}

// Takes the part of a piece that lies before `end` instead of it all, while nothing else is free; and the part behind it, for now: else
// the next piece might get that.
// @return  The part behind; nullptr: there is none.
void* shorten(Pieces::value_type& piece, std::uintptr_t end, bool is_large) {
  const auto [begin, whole] = piece;
  const std::size_t bytes =
      memory::in_whole_units(std::max<std::size_t>(end - begin, is_large ? kSmallestLargeRequest : 0));
  const std::size_t behind = whole.bytes - std::min(bytes, whole.bytes);
  if (whole.bytes >= Settings::max_split_size()) return nullptr;        // torch would not split it
  if (behind < (is_large ? kSmallestLargeRequest : 1)) return nullptr;  // torch would not split it off
  allocator::raw_delete(reinterpret_cast<void*>(begin));
  piece.second.bytes = 0;
  for (const std::size_t wanted : {bytes, whole.bytes}) {
    void* const again = ask_for(wanted, whole.stream);
    if (reinterpret_cast<std::uintptr_t>(again) == begin) {
      piece.second.bytes = wanted;
      return wanted == bytes ? ask_for(behind, whole.stream) : nullptr;
    }
    if (again != nullptr) allocator::raw_delete(again);
  }
  return nullptr;
}

bool covers(const Pieces& pieces, std::uintptr_t begin, std::uintptr_t end) {
  for (auto piece = pieces.lower_bound(begin); begin < end; ++piece) {
    if (piece == pieces.end() || piece->first != begin || piece->second.bytes == 0) return false;
    begin += piece->second.bytes;
  }
  return true;
}

}  // namespace

// Another thread may free a tensor of the pool meanwhile, beside a block that was looked at: then it is looked at again.
PoolReservation::PoolReservation(c10::DeviceIndex device, c10::MempoolId_t pool, const std::vector<ByteSpan>& used) {
  const c10::cuda::CUDAGuard on_device(device);
  for (int tries = 0; tries < kTries; ++tries) {
    if (hold(c10::Device(c10::kCUDA, device), pool, used)) return;
    give_back();
  }
  throw UnsupportedError(
      {.what = "the memory that earlier graphs of the pool write cannot be kept from results of a later one",
       .fix = "capture it into a pool of its own, or leave roundup_power2_divisions out of PYTORCH_CUDA_ALLOC_CONF"});
}

bool PoolReservation::hold(c10::Device device, c10::MempoolId_t pool, const std::vector<ByteSpan>& used) {
  const std::vector<FreeBlock> blocks = free_blocks(device, pool, used);
  if (std::ranges::none_of(blocks, [](const FreeBlock& block) { return block.used_to != 0; })) return true;
  if (std::ranges::any_of(blocks, [](const FreeBlock& block) { return rounds_up(block.span.size()); })) return false;
  const auto is_asked_for_here = [thread = std::this_thread::get_id()](cudaStream_t) {
    return std::this_thread::get_id() == thread;
  };
  const IntoPool into_pool(device.index(), pool, is_asked_for_here);
  Pieces taken = take_all(blocks);
  bool has_all = true;
  std::set<std::uintptr_t> kept;
  std::vector<void*> behind;
  for (const FreeBlock& block : blocks) {
    if (block.used_to == 0) continue;
    for (auto piece = taken.lower_bound(block.span.begin); piece != taken.end() && piece->first < block.used_to;
         ++piece) {
      if (piece->first + piece->second.bytes > block.used_to) {
        if (void* const rest = shorten(*piece, block.used_to, block.is_large)) behind.push_back(rest);
      }
      if (piece->second.bytes != 0) kept.insert(piece->first);
    }
    has_all = has_all && covers(taken, block.span.begin, block.used_to);
  }
  for (void* const rest : behind) allocator::raw_delete(rest);
  for (const auto& [begin, piece] : taken) {
    if (kept.contains(begin)) {
      held_.push_back(reinterpret_cast<void*>(begin));
    } else if (piece.bytes != 0) {
      allocator::raw_delete(reinterpret_cast<void*>(begin));
    }
  }
  return has_all;
}

PoolReservation::~PoolReservation() { give_back(); }

void PoolReservation::give_back() noexcept {
  for (void* memory : held_) {
    try {
      allocator::raw_delete(memory);
    } catch (const c10::Error& error) {
      TORCH_WARN("pianola: memory of a pool could not be given back: ", error.what());
    }
  }
  held_.clear();
}

}  // namespace pianola::graph
