#include <pianola/callable/kept_tensors.hpp>

#include <pianola/trace/parts.hpp>
#include <pianola/trace/references.hpp>
#include <pianola/trace/storage_set.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <ATen/autocast_mode.h>
#include <c10/util/flat_hash_map.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace pianola::callable {
namespace {

// Of one observed call, where something seems to be kept.
constexpr std::chrono::milliseconds kPatience(50);
constexpr std::chrono::milliseconds kPatienceWithRanks(1000);  // NCCL's watchdog looks ten times a second

using Known = ska::flat_hash_set<const c10::StorageImpl*>;

void add_gradient(Known& known, const at::Tensor& tensor) {
  if (!tensor.is_leaf() || !tensor.requires_grad()) return;
  trace::for_each_part(tensor.grad(), [&](const at::Tensor& part) { known.insert(trace::storage_of(part)); });
}

// Autocast around the call keeps what it converts until its region ends.
bool keeps_casts() {
  return at::autocast::is_autocast_cache_enabled() &&
         (at::autocast::is_autocast_enabled(at::kCPU) || at::autocast::is_autocast_enabled(at::kCUDA));
}

}  // namespace

KeptTensors::KeptTensors(const EagerRun& run, std::span<const at::Tensor> inputs,
                         const std::vector<at::Tensor>& results, const std::vector<at::Tensor>& remade,
                         bool may_leave_gradients)
    : inputs_(run.input_holders()),
      communicates_(run.communication().has_value()),
      history_(results, run.first_node(), run.released_nodes()) {
  inputs_.count_out(history_);
  Known known;
  for (const at::Tensor& tensor : remade) known.insert(trace::storage_of(tensor));
  for (const at::Tensor& input : inputs) add_gradient(known, input);
  if (may_leave_gradients) {
    for (const at::Tensor& leaf : run.watch().leaves()) add_gradient(known, leaf);
  }
  for (const graph::IslandNotes& island : run.islands().notes()) {
    for (const trace::WeakTensor& parameter : island.parameters) {
      if (const auto leaf = parameter.lock()) add_gradient(known, at::Tensor(leaf));
    }
  }
  for (const at::Tensor& result : results) known.insert(trace::storage_of(result));
  inputs_.leave_out([&](const c10::StorageImpl* memory) { return known.count(memory) != 0; });
  if (communicates_ || !run.islands().notes().empty())
    inputs_.clear();  // they may be held for other ranks, or by a part
  const bool casts_are_kept = keeps_casts();
  for (CallWatch::Made& made : run.watch().made_and_held()) {
    if (known.count(made.storage._unsafe_get_target()) != 0) continue;
    if (run.parts().made(made.storage._unsafe_get_target())) continue;  // replays hand it out
    if (casts_are_kept && run.log().name_of(made.operation) == "aten::_to_copy") continue;
    kept_.push_back({.storage = std::move(made.storage),
                     .site = run.log().site_of(made.operation),
                     .in_backward = made.in_backward});
  }
}

bool KeptTensors::is_held(const Kept& kept) const {
  const c10::Storage memory(kept.storage.lock());
  return memory && trace::references_to(memory) > 1 + history_.references_to(memory);  // one is ours
}

bool KeptTensors::is_open() const { return any() && history_.may_hold_tensors(); }

bool KeptTensors::any() const {
  return std::any_of(kept_.begin(), kept_.end(), [&](const Kept& kept) { return is_held(kept); });
}

// A backward pass returns before the thread of the device has dropped its last references: to the gradients that
// torch::autograd::grad() returned, and to whatever its last node was given. A process group lets go of a collective's tensors
// some time after it is done.
void KeptTensors::wait_for_threads() const {
  const auto waits = [&](const Kept& kept) { return (kept.in_backward || communicates_) && is_held(kept); };
  const auto end = std::chrono::steady_clock::now() + (communicates_ ? kPatienceWithRanks : kPatience);
  const auto waits_for_any = [&] { return std::any_of(kept_.begin(), kept_.end(), waits) || kept_input().has_value(); };
  while (waits_for_any() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

std::optional<std::size_t> KeptTensors::kept_input() const {
  return history_.may_hold_tensors() ? std::nullopt : inputs_.kept();
}

InputHolders KeptTensors::take_kept_inputs() {
  if (history_.may_hold_tensors()) inputs_.clear();
  inputs_.forget_free();
  return std::exchange(inputs_, InputHolders());
}

Diagnosis KeptTensors::refuse_kept_input(std::size_t position) {
  return {.what = fmt::format("the function keeps input {} beyond the call; a replay would not keep that of its own "
                              "call, and would overwrite what is kept",
                              position),
          .fix = "return it and keep what the call returns, or copy it into a tensor made before",
          .rule = "PG802"};
}

std::optional<Diagnosis> KeptTensors::offence() const {
  const auto kept = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& one) { return is_held(one); });
  if (kept == kept_.end()) return std::nullopt;
  return Diagnosis{
      .what = "the function keeps a tensor that it made and does not return; each replay would overwrite it",
      .where = kept->site.describe(),
      .fix = "return it and keep what the call returns, or copy it into a tensor made before",
      .rule = "PG802"};
}

}  // namespace pianola::callable
