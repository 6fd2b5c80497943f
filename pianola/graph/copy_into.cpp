#include <pianola/graph/copy_into.hpp>

#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <cstring>

namespace pianola::graph {

bool is_plain_copy(const at::Tensor& to, const at::Tensor& from) {
  return to.strides() == from.strides() && to.is_non_overlapping_and_dense() && from.device() == to.device() &&
         from.scalar_type() == to.scalar_type() && !from.is_conj() && !from.is_neg();
}

void copy_into(std::span<const at::Tensor> targets, std::span<const at::Tensor> sources) {
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const at::Tensor& to = targets[i];
    const at::Tensor& from = sources[i];
    if (to.numel() == 0 || (from.defined() && trace::address_of(to) == trace::address_of(from))) continue;
    if (from.defined() && to.is_cpu() && is_plain_copy(to, from)) {
      std::memcpy(const_cast<std::byte*>(trace::address_of(to)), trace::address_of(from), to.nbytes());
      continue;
    }
    const trace::QuietScope quiet;
    from.defined() ? to.copy_(from) : to.zero_();
  }
}

}  // namespace pianola::graph
