#include <pianola/graph/tape/tape.hpp>

#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

#include <cstring>
#include <set>

namespace pianola::graph {
namespace {

const at::Tensor& tensor_at(const c10::IValue& value, std::int64_t position) {
  return position < 0 ? value.toTensor() : value.toListRef()[static_cast<std::size_t>(position)].toTensor();
}

// Moves a new result into the memory that the recording gave it.
void place(const at::Tensor& target, const at::Tensor& result) {
  if (target.numel() == 0) return;
  if (target.strides() == result.strides() && target.is_non_overlapping_and_dense()) {
    std::memcpy(target.mutable_data_ptr(), result.const_data_ptr(), target.nbytes());
  } else {
    target.copy_(result);
  }
}

}  // namespace

void Tape::replay() {
  const trace::QuietScope quiet;
  // The aliases have no history: go straight to the kernels.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (const TapeOp& op : ops_) {
    at::GradMode::set_enabled(op.grad_mode);
    stack_.insert(stack_.end(), op.inputs.begin(), op.inputs.end());
    op.handle.callBoxed(stack_);
    if (!op.writes_results) {
      for (const auto& [output, position] : op.fresh) {
        place(tensor_at(op.outputs[output], position), tensor_at(stack_[output], position));
      }
    }
    stack_.clear();
  }
}

std::map<std::string, std::size_t> Tape::count_by_operator() const {
  std::map<std::string, std::size_t> counts;
  for (const TapeOp& op : ops_) ++counts[op.info->name];
  return counts;
}

std::size_t Tape::result_bytes() const {
  std::set<const c10::StorageImpl*> seen;
  std::size_t bytes = 0;
  for (const TapeOp& op : ops_) {
    for (const auto& [output, position] : op.fresh) {
      const c10::StorageImpl* storage = trace::storage_of(tensor_at(op.outputs[output], position));
      if (storage != nullptr && seen.insert(storage).second) bytes += storage->nbytes();
    }
  }
  return bytes;
}

}  // namespace pianola::graph
