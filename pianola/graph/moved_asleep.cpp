#include <pianola/graph/moved_asleep.hpp>

#include <pianola/trace/describe.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace pianola::graph {

MovedAsleep::MovedAsleep(std::shared_ptr<PoolState> pool, const std::vector<at::Tensor>& tensors,
                         std::span<const NamedTensor> names)
    : pool_(std::move(pool)) {
  for (const at::Tensor& tensor : tensors) {
    const auto named = std::ranges::find_if(names, [&](const NamedTensor& one) { return one.tensor.is_same(tensor); });
    watched_.push_back({.tensor = trace::WeakTensor(tensor.getIntrusivePtr()),
                        .impl = tensor.unsafeGetTensorImpl(),
                        .name = named == names.end() ? "" : fmt::format("'{}', ", named->name)});
  }
  pool_->graphs().tell_of_sleep(this, [this] { note_places(); });
}

MovedAsleep::~MovedAsleep() { pool_->graphs().forget_sleep_of(this); }

// Where no replay has looked since the last sleep, what moved then counts still.
void MovedAsleep::note_places() {
  if (slept_.load(std::memory_order_relaxed)) return;
  for (Watched& one : watched_) {
    if (!one.tensor.expired()) one.placement = Placement(*one.impl);
  }
  slept_.store(true, std::memory_order_release);
}

// One that is gone, or without memory, is let go of by whoever had it: nobody expects that a replay reads it.
Placement::Change MovedAsleep::Watched::change() const noexcept {
  if (tensor.expired() || placement.address() == nullptr) return Placement::Change::none;
  const Placement::Change found = placement.is_of(*impl) ? Placement::Change::none : placement.change(*impl);
  return found == Placement::Change::freed ? Placement::Change::none : found;
}

bool MovedAsleep::look() noexcept {
  const bool all =
      std::ranges::all_of(watched_, [](const Watched& one) { return one.change() == Placement::Change::none; });
  if (all) slept_.store(false, std::memory_order_relaxed);
  return all;
}

Diagnosis MovedAsleep::offence() const {
  const auto moved =
      std::ranges::find_if(watched_, [](const Watched& one) { return one.change() != Placement::Change::none; });
  if (moved == watched_.end())
    return {.what = "a tensor that the graph uses moved while its pool slept"};  // and is back
  const at::Tensor tensor(moved->tensor.lock());
  const bool is_parameter = tensor.defined() && tensor.is_leaf() && tensor.requires_grad();
  return {.what = fmt::format("{}{}: {} while the graph's pool slept; nothing was launched", moved->name,
                              trace::describe(tensor), in_words(moved->change())),
          .fix =
              "make it inside of GraphPool::Allocations, in Python of `with pool.allocations()`, so that its memory "
              "goes and comes back with the pool, in place of moving it; or capture again",
          .rule = is_parameter ? "PG402" : "PG401"};
}

}  // namespace pianola::graph
