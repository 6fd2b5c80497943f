#include <pianola/verify/dependence.hpp>

#include <pianola/trace/op_info.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <unordered_set>

namespace pianola::verification {
namespace {

const std::byte* begin_of(const TensorRecord& record) { return static_cast<const std::byte*>(record.address); }

bool overlap(const TensorRecord& record, const at::Tensor& tensor) {
  const std::byte* begin = trace::address_of(tensor);
  return begin_of(record) < begin + trace::span_bytes_of(tensor) && begin < begin_of(record) + record.span_bytes;
}

bool made_now(const TensorRecord& result) { return result.made_in_step && result.written; }

// The address of memory that was freed may have come back as another's: the last one made is the one that lives.
std::size_t made_at(const OpTrace& trace, const c10::StorageImpl* storage) {
  for (std::size_t i = trace.ops().size(); i-- > 0;) {
    for (const TensorRecord& result : trace.outputs(trace.ops()[i])) {
      if (result.storage == storage && made_now(result)) return i;
    }
  }
  return 0;
}

}  // namespace

std::optional<std::size_t> first_writer(const OpTrace& trace, const at::Tensor& tensor) {
  const c10::StorageImpl* storage = tensor.defined() ? trace::storage_of(tensor) : nullptr;
  if (storage == nullptr) return std::nullopt;
  const auto writes = [&](const TensorRecord& record) {
    return record.storage == storage && record.written && overlap(record, tensor);
  };
  for (std::size_t i = made_at(trace, storage); i < trace.ops().size(); ++i) {
    const OpRecord& op = trace.ops()[i];
    for (const TensorRecord& input : trace.inputs(op)) {
      if (writes(input)) return i;
    }
    if (op.info->is_empty) continue;
    for (const TensorRecord& result : trace.outputs(op)) {
      if (writes(result)) return i;
    }
  }
  return std::nullopt;
}

bool reaches(const OpTrace& trace, std::size_t from, const at::Tensor& tensor) {
  std::unordered_set<const void*> reached;
  for (std::size_t i = from; i < trace.ops().size(); ++i) {
    const OpRecord& op = trace.ops()[i];
    bool depends = i == from;
    for (const TensorRecord& input : trace.inputs(op)) depends = depends || reached.count(input.storage) != 0;
    for (const TensorRecord& input : trace.inputs(op)) {
      if (depends && input.written) reached.insert(input.storage);
    }
    for (const TensorRecord& result : trace.outputs(op)) {
      if (depends) {
        reached.insert(result.storage);
      } else if (made_now(result)) {
        reached.erase(result.storage);
      }
    }
  }
  return tensor.defined() && reached.count(trace::storage_of(tensor)) != 0;
}

std::optional<std::size_t> first_draw(const OpTrace& trace) {
  for (std::size_t i = 0; i < trace.ops().size(); ++i) {
    if (trace.ops()[i].info->seeded) return i;
  }
  return std::nullopt;
}

}  // namespace pianola::verification
