#include <pianola/graph/cuda/reuse_delay.hpp>

#include <pianola/trace/step_memory.hpp>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace pianola::graph {

// Parameters are updated in another order than their gradients arrive in: where the temporaries of an update are used again
// soon, the update of the last parameter waits for that of the first, whose gradient comes last. In a forward pass alone,
// to spread over more memory gains nothing and costs cache.
constexpr std::size_t kLongerInTraining = 4;

ReuseDelay::~ReuseDelay() {
  while (!held_.empty()) let_go_of_oldest();
}

void ReuseDelay::on_op_begin(const trace::OpSpan& op) {
  if (limits_.operations == 0) return;
  ran_backward_ = ran_backward_ || op.backward != nullptr;
  Held& held = held_.emplace_back(Held{.operation = op.number, .storages = {}, .scratch = {}});
  for (const c10::IValue& value : op.inputs) {
    trace::for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (op.memory->made(tensor)) hold(held, tensor);
    });
  }
  allocated_at_begin_ = watch_.allocated();
  freed_at_begin_ = watch_.freed();
}

void ReuseDelay::on_op_end(const trace::OpSpan& op) {
  const auto begun = [&](const Held& held) { return held.operation == op.number; };
  const auto held = std::find_if(held_.rbegin(), held_.rend(), begun);
  if (held == held_.rend()) return;
  for (const c10::IValue& value : op.outputs) {
    trace::for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (op.memory->makes(op, trace::storage_of(tensor))) hold(*held, tensor);
    });
  }
  hold_scratch(*held);
  const std::size_t longest = ran_backward_ ? kLongerInTraining * limits_.operations : limits_.operations;
  while (!held_.empty() && (held_.size() > longest || bytes() > limits_.bytes)) let_go_of_oldest();
  most_bytes_ = std::max(most_bytes_, bytes());
}

void ReuseDelay::hold(Held& held, const at::Tensor& tensor) {
  const c10::StorageImpl* storage = trace::storage_of(tensor);
  if (storage == nullptr) return;
  Owned& owned = owned_[storage];
  if (owned.holds++ == 0) owned.storage = tensor.storage();
  held.storages.push_back(storage);
}

// The largest first: a small request could take a piece of a large block.
void ReuseDelay::hold_scratch(Held& held) {
  std::vector<ByteSpan> scratch;
  const std::vector<ByteSpan> allocated = watch_.allocated_since(allocated_at_begin_);
  for (const ByteSpan& freed : watch_.freed_since(freed_at_begin_)) {
    if (std::find(allocated.begin(), allocated.end(), freed) != allocated.end()) scratch.push_back(freed);
  }
  std::sort(scratch.begin(), scratch.end(), [](const ByteSpan& a, const ByteSpan& b) { return a.size() > b.size(); });
  for (const ByteSpan& block : scratch) {
    if (is_workspace(block.size()) && limits_.workspaces == 0) continue;
    if (bytes() + block.size() > limits_.bytes) return;
    try {
      void* memory = c10::cuda::CUDACachingAllocator::raw_alloc_with_stream(block.size(), stream_.stream());
      held.scratch.push_back({.memory = memory, .bytes = block.size()});
    } catch (const c10::OutOfMemoryError&) {
      return;  // the step itself may still fit
    }
    scratch_bytes_ += block.size();
    workspaces_ += is_workspace(block.size()) ? 1 : 0;
    // After the newest is taken, or that would be given the memory of the oldest.
    while (workspaces_ > limits_.workspaces) let_go_of_oldest_workspace();
  }
}

void ReuseDelay::let_go_of_oldest() {
  Held& oldest = held_.front();
  for (const c10::StorageImpl* storage : oldest.storages) {
    const auto owned = owned_.find(storage);
    if (--owned->second.holds == 0) owned_.erase(owned);
  }
  for (const Scratch& scratch : oldest.scratch) let_go(scratch);
  held_.pop_front();
}

void ReuseDelay::let_go_of_oldest_workspace() {
  for (Held& held : held_) {
    const auto found = std::find_if(held.scratch.begin(), held.scratch.end(),
                                    [&](const Scratch& scratch) { return is_workspace(scratch.bytes); });
    if (found == held.scratch.end()) continue;
    let_go(*found);
    held.scratch.erase(found);
    return;
  }
}

void ReuseDelay::let_go(const Scratch& scratch) {
  c10::cuda::CUDACachingAllocator::raw_delete(scratch.memory);
  scratch_bytes_ -= scratch.bytes;
  workspaces_ -= is_workspace(scratch.bytes) ? 1 : 0;
}

std::size_t ReuseDelay::bytes() const {
  std::size_t bytes = scratch_bytes_;
  for (const auto& [identity, owned] : owned_) {
    if (owned.storage.use_count() == 1) bytes += owned.storage.nbytes();
  }
  return bytes;
}

}  // namespace pianola::graph
