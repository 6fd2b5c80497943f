#include <pianola/trace/op_trace.hpp>

#include <pianola/trace/call_site.hpp>
#include <pianola/trace/op_info.hpp>

#include <algorithm>

namespace pianola {

OpTrace::OpTrace() = default;
OpTrace::OpTrace(OpTrace&&) noexcept = default;
OpTrace& OpTrace::operator=(OpTrace&&) noexcept = default;
OpTrace::~OpTrace() = default;

const std::string& OpTrace::name(const OpRecord& op) const { return op.info->name; }

std::span<const TensorRecord> OpTrace::inputs(const OpRecord& op) const noexcept {
  return std::span(tensors_).subspan(op.first_input, op.inputs);
}

std::span<const TensorRecord> OpTrace::outputs(const OpRecord& op) const noexcept {
  return std::span(tensors_).subspan(op.first_output, op.outputs);
}

std::span<const ScalarRecord> OpTrace::scalars(const OpRecord& op) const noexcept {
  return std::span(scalars_).subspan(op.first_scalar, op.scalars);
}

std::span<const void* const> OpTrace::nodes(const OpRecord& op) const noexcept {
  return std::span(nodes_).subspan(op.first_node, op.nodes);
}

std::span<const ByteSpan> OpTrace::blocks(const OpRecord& op) const noexcept {
  return std::span(blocks_).subspan(op.first_block, op.blocks);
}

const std::string& OpTrace::scope(const OpRecord& op) const { return scopes_[op.scope]; }

std::span<const std::int64_t> OpTrace::sizes(const TensorRecord& tensor) const noexcept {
  return std::span(dims_).subspan(tensor.shape, tensor.rank);
}

std::span<const std::int64_t> OpTrace::strides(const TensorRecord& tensor) const noexcept {
  return std::span(dims_).subspan(tensor.shape + tensor.rank, tensor.rank);
}

const OpRecord* OpTrace::forward_of(const OpRecord& op) const noexcept {
  if (!op.backward || op.forward_sequence < 0) return nullptr;
  // Operations that make no node of the backward graph carry the number of the next one: the last is the right one.
  const auto forward = std::find_if(ops_.rbegin(), ops_.rend(), [&](const OpRecord& candidate) {
    return !candidate.backward && candidate.sequence == op.forward_sequence;
  });
  return forward == ops_.rend() ? nullptr : &*forward;
}

const trace::CallSite* OpTrace::site(const OpRecord& op) const noexcept {
  return sites_.empty() ? nullptr : &sites_[static_cast<std::size_t>(&op - ops_.data())];
}

SourcePlace OpTrace::source(const OpRecord& op) const {
  const OpRecord* forward = forward_of(op);
  const trace::CallSite* called_from = site(forward == nullptr ? op : *forward);
  return called_from == nullptr ? SourcePlace() : called_from->place();
}

}  // namespace pianola
