#include <pianola/trace/memory_ranges.hpp>

#include <pianola/trace/tensors_of.hpp>

#include <algorithm>
#include <cstddef>

namespace pianola::trace {

void MemoryRanges::add(const at::Tensor& tensor) {
  if (!tensor.defined() || storage_of(tensor) == nullptr || tensor.numel() == 0) return;
  const auto begin = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  if (begin == 0) return;
  std::size_t last = 0;  // element
  for (std::int64_t i = 0; i < tensor.dim(); ++i)
    last += static_cast<std::size_t>((tensor.size(i) - 1) * tensor.stride(i));
  ranges_.emplace_back(begin, begin + (last + 1) * tensor.element_size());
}

void MemoryRanges::add_storage_of(const at::Tensor& tensor) {
  const c10::StorageImpl* const storage = tensor.defined() ? storage_of(tensor) : nullptr;
  if (storage == nullptr || storage->data() == nullptr || storage->nbytes() == 0) return;
  const auto begin = reinterpret_cast<std::uintptr_t>(storage->data());
  ranges_.emplace_back(begin, begin + storage->nbytes());
}

std::vector<MemoryRanges::Range> MemoryRanges::in_order() const {
  std::vector<Range> sorted = ranges_;
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

bool MemoryRanges::overlap_each_other() const {
  const std::vector<Range> sorted = in_order();
  return std::adjacent_find(sorted.begin(), sorted.end(), [](const Range& one, const Range& next) {
           return next.first < one.second;
         }) != sorted.end();
}

bool MemoryRanges::overlap(const MemoryRanges& others) const {
  const std::vector<Range> mine = in_order();
  const std::vector<Range> theirs = others.in_order();
  auto one = mine.begin();
  auto other = theirs.begin();
  std::uintptr_t my_end = 0, their_end = 0;  // of all before
  while (one != mine.end() || other != theirs.end()) {
    const bool is_mine = other == theirs.end() || (one != mine.end() && one->first < other->first);
    const Range& next = is_mine ? *one++ : *other++;
    if (next.first < (is_mine ? their_end : my_end)) return true;
    (is_mine ? my_end : their_end) = std::max(is_mine ? my_end : their_end, next.second);
  }
  return false;
}

}  // namespace pianola::trace
