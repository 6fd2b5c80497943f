#include <pianola/parallel/op_accesses.hpp>

#include <pianola/trace/op_info.hpp>

#include <ATen/core/function_schema.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>

namespace pianola::parallel {
namespace {

ByteSpan bytes_of(const TensorRecord& tensor) {
  const auto begin = reinterpret_cast<std::uintptr_t>(tensor.address);
  return {.begin = begin, .end = begin + (tensor.address == nullptr ? 0 : tensor.span_bytes)};
}

class AccessList {
 public:
  AccessList(const OpTrace& trace, const OpRecord& op, StorageOwners& owners)
      : trace_(trace), op_(op), owners_(owners) {}

  std::vector<Access> take() {
    add_inputs();
    add_results();
    add_blocks();
    tidy(accesses_);
    return std::move(accesses_);
  }

 private:
  void add(const TensorRecord& tensor, bool write, const void* owner) {
    const ByteSpan bytes = bytes_of(tensor);
    if (bytes.empty()) return;
    const Memory memory = tensor.made_in_step ? Memory::made : Memory::outside;
    accesses_.push_back({.bytes = bytes, .write = write, .memory = memory, .owner = owner});
  }

  void add_inputs() {
    for (const TensorRecord& input : trace_.inputs(op_)) {
      if (input.written) written_.push_back(input.storage);
      add(input, input.written, owners_.owner_of(input.storage));
    }
    std::sort(written_.begin(), written_.end(), std::less<>());
  }

  void add_results() {
    for (const TensorRecord& result : trace_.outputs(op_)) {
      if (result.written) {
        const void* owner = owners_.owner_of_new(result, op_);
        results_.emplace_back(bytes_of(result).begin, owner);
        add(result, true, owner);
      } else if (std::binary_search(written_.begin(), written_.end(), result.storage, std::less<>())) {
        // A tensor that was written may have another size now: mm.out makes room in what it is given.
        add(result, true, owners_.owner_of(result.storage));
      }
    }
    std::sort(results_.begin(), results_.end());
  }

  // What was allocated inside holds a result, or is scratch, which is nobody's later.
  void add_blocks() {
    for (const ByteSpan& block : trace_.blocks(op_)) {
      if (block.empty()) continue;
      const auto result = std::lower_bound(results_.begin(), results_.end(), std::pair(block.begin, nullptr),
                                           [](const auto& a, const auto& b) { return a.first < b.first; });
      const bool holds_result = result != results_.end() && block.contains(result->first);
      accesses_.push_back({.bytes = block,
                           .write = true,
                           .memory = Memory::made,
                           .owner = holds_result ? result->second : static_cast<const void*>(&block)});
    }
  }

  const OpTrace& trace_;
  const OpRecord& op_;
  StorageOwners& owners_;
  std::vector<Access> accesses_;
  std::vector<const void*> written_;                             // storages, sorted
  std::vector<std::pair<std::uintptr_t, const void*>> results_;  // address and owner, sorted
};

bool returns_tensors(const c10::FunctionSchema& schema) {
  return std::any_of(schema.returns().begin(), schema.returns().end(), [](const c10::Argument& result) {
    return result.type()->isSubtypeOf(*c10::TensorType::get()) ||
           result.type()->isSubtypeOf(*c10::ListType::ofTensors());
  });
}

// Lists that are given to be filled come back to the caller only: their new size, if they got one, is not seen.
bool fills_unseen(const c10::FunctionSchema& schema) {
  return schema.returns().empty() && std::any_of(schema.arguments().begin(), schema.arguments().end(),
                                                 [](const c10::Argument& argument) { return argument.is_out(); });
}

}  // namespace

const void* StorageOwners::owner_of_new(const TensorRecord& result, const OpRecord& op) {
  const auto [entry, is_first] = known_.try_emplace(result.storage, Known{.owner = result.storage, .maker = &op});
  if (!is_first && entry->second.maker != &op) entry->second = {.owner = &result, .maker = &op};
  return entry->second.owner;
}

std::vector<Access> accesses_of(const OpTrace& trace, const OpRecord& op, StorageOwners& owners) {
  return AccessList(trace, op, owners).take();
}

void tidy(std::vector<Access>& accesses) {
  // Of those that begin together the longest goes first, and of those that are the same the one that writes.
  std::sort(accesses.begin(), accesses.end(), [](const Access& a, const Access& b) {
    if (a.bytes.begin != b.bytes.begin) return a.bytes.begin < b.bytes.begin;
    if (a.bytes.end != b.bytes.end) return a.bytes.end > b.bytes.end;
    return a.write && !b.write;
  });
  const auto contains = [](const Access& outer, const Access& inner) {
    return inner.bytes.end <= outer.bytes.end && (outer.write || !inner.write) && inner.memory == outer.memory &&
           inner.owner == outer.owner;
  };
  std::size_t kept = 0;
  for (const Access& access : accesses) {
    if (kept > 0 && contains(accesses[kept - 1], access)) continue;
    accesses[kept++] = access;
  }
  accesses.resize(kept);
}

bool draws_numbers(const OpRecord& op) { return op.info->seeded || op.random_numbers > 0; }

Access order_of_collectives() {
  static const char order = 0;
  const auto address = reinterpret_cast<std::uintptr_t>(&order);
  return {.bytes = {address, address + 1}, .write = true, .memory = Memory::order, .owner = &order};
}

bool is_torchs_own(const OpTrace& trace, const OpRecord& op) {
  const std::string& name = trace.name(op);
  return name.starts_with("aten::") || name.starts_with("prims::");
}

bool is_compiled_kernel(const OpTrace& trace, const OpRecord& op) {
  return trace.name(op) == "pianola::compiled_kernel";
}

// Note [Schemas that nobody wrote]
// A schema that torch infers from a C++ function marks no argument, whatever the function writes; torch then says
// CONSERVATIVE about its aliases. One that was written as text may be wrong, but somebody said so.
std::string barrier_of(const OpTrace& trace, const OpRecord& op) {
  const std::string& name = trace.name(op);
  const c10::FunctionSchema& schema = op.info->schema();
  if (!is_torchs_own(trace, op) && schema.aliasAnalysis() == c10::AliasAnalysisKind::CONSERVATIVE) {
    return "operator " + name + " has no written schema";
  }
  if (op.opaque) return "other work runs inside " + name + ", which its arguments do not show";
  if (op.host_read) return name + " reads a value on the host";
  if (op.outputs == 0 && returns_tensors(schema)) return name + " returned nothing";
  if (fills_unseen(schema)) return name + " may make room in a list that it fills";
  const auto has_no_memory = [](const TensorRecord& tensor) {
    return tensor.storage == nullptr || (tensor.address == nullptr && tensor.span_bytes > 0);
  };
  const auto inputs = trace.inputs(op);
  const auto outputs = trace.outputs(op);
  if (std::any_of(inputs.begin(), inputs.end(), has_no_memory) ||
      std::any_of(outputs.begin(), outputs.end(), has_no_memory)) {
    return name + " has a tensor without memory of its own (sparse or opaque)";
  }
  return "";
}

}  // namespace pianola::parallel
