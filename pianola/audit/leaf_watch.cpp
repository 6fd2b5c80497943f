#include <pianola/audit/leaf_watch.hpp>

#include <utility>

namespace pianola::auditing {
namespace {

at::Tensor held(const WeakTensor& weak) {
  auto strong = weak.lock();
  return strong.defined() ? at::Tensor(std::move(strong)) : at::Tensor();
}

}  // namespace

std::size_t LeafWatch::note(const at::Tensor& leaf) {
  const auto [entry, is_new] = leaf_at_.insert({leaf.unsafeGetTensorImpl(), leaves_.size()});
  if (is_new) leaves_.push_back({.tensor = WeakTensor(leaf.getIntrusivePtr()), .impl = leaf.unsafeGetTensorImpl()});
  return entry->second;
}

Memory LeafWatch::gradient_of(const Leaf& leaf) {
  const at::Tensor tensor = held(leaf.tensor);
  return tensor.defined() ? Memory::of(tensor.grad()) : Memory();
}

std::vector<GradientNote> LeafWatch::at_begin() const {
  std::vector<GradientNote> notes;
  notes.reserve(leaves_.size());
  for (const Leaf& leaf : leaves_) {
    notes.push_back(
        {.leaf = leaf.impl, .leaf_memory = {}, .before = gradient_of(leaf), .after = {}, .watched_before = true});
  }
  return notes;
}

void LeafWatch::at_end(std::vector<GradientNote>& notes) const {
  for (std::size_t i = notes.size(); i < leaves_.size(); ++i) {
    GradientNote note;
    note.leaf = leaves_[i].impl;
    notes.push_back(std::move(note));
  }
  for (std::size_t i = 0; i < leaves_.size(); ++i) {
    notes[i].after = gradient_of(leaves_[i]);
    const at::Tensor leaf = held(leaves_[i].tensor);
    notes[i].leaf_memory = Memory::of(leaf);
  }
}

}  // namespace pianola::auditing
