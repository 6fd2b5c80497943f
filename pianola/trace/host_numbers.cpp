#include <pianola/trace/host_numbers.hpp>

#include <pianola/trace/arguments.hpp>
#include <pianola/trace/wrapped_number.hpp>

#include <c10/core/CPUAllocator.h>

namespace pianola::trace {
namespace {

// The largest number is complex<double>.
constexpr std::size_t kMostBytes = 16;

bool is_torchs_own(const c10::Storage& storage) {
  const c10::DeleterFnPtr deleter = storage.data_ptr().get_deleter();
  return deleter == c10::GetCPUAllocator()->raw_deleter() || deleter == c10::GetDefaultCPUAllocator()->raw_deleter();
}

}  // namespace

bool HostNumbers::is_fresh(const at::Tensor& tensor) const {
  if (allocations_ == nullptr || !tensor.has_storage() || !tensor.device().is_cpu()) return false;
  const c10::Storage& storage = tensor.storage();
  return storage.data() != nullptr && is_torchs_own(storage) && allocations_->contains(storage.data());
}

bool HostNumbers::is_of_host(const at::Tensor& tensor) const {
  return tensor.has_storage() && tensor.storage().nbytes() <= kMostBytes && is_fresh(tensor);
}

void HostNumbers::note_writes(const OpInfo& op, c10::ArrayRef<c10::IValue> inputs) {
  if (allocations_ == nullptr) return;
  for_each_argument(op, inputs, [&](const at::Tensor& tensor, bool written) {
    if (written && is_of_host(tensor)) written_.insert(tensor.storage());
  });
}

bool HostNumbers::contains(const at::Tensor& tensor) const {
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return false;  // made for its operation: see wrapped_number()
  return is_of_host(tensor) && !tensor.requires_grad() && !written_.contains(storage_of(tensor)) && is_number(tensor);
}

}  // namespace pianola::trace
