#include <pianola/callable/structure_table.hpp>

#include <algorithm>
#include <utility>

namespace pianola::callable {
namespace {

constexpr std::size_t kMost = 128;

}  // namespace

StructureTable::Match StructureTable::find(const c10::IValue& arguments, std::vector<at::Tensor>& tensors) {
  const std::lock_guard lock(mutex_);
  for (auto known = known_.begin(); known != known_.end(); ++known) {
    tensors.clear();
    if (known->structure->flatten(arguments, tensors)) continue;
    std::rotate(known_.begin(), known, known + 1);
    return known_.front();
  }
  if (known_.size() == kMost) known_.pop_back();
  tensors.clear();
  auto structure = std::make_shared<const Structure>(arguments, name_);
  (void)structure->flatten(arguments, tensors);
  return *known_.insert(known_.begin(), {.key = next_key_++, .structure = std::move(structure)});
}

}  // namespace pianola::callable
