#pragma once
#include <pianola/parallel/unit.hpp>
#include <pianola/trace/op_trace.hpp>

#include <string>
#include <unordered_map>
#include <vector>

namespace pianola::parallel {

/// Gives each storage of a step an identity that no other has. A storage's own address is none: the one made after it
/// was freed often gets it, and often the same bytes too. The first at an address is known by that address.
class StorageOwners {
 public:
  /// Of the storage that is at this address now.
  const void* owner_of(const void* storage) {
    return known_.try_emplace(storage, Known{.owner = storage}).first->second.owner;
  }
  /// `result` is new memory, made by `op`.
  const void* owner_of_new(const TensorRecord& result, const OpRecord& op);

 private:
  struct Known {
    const void* owner;
    const OpRecord* maker = nullptr;
  };
  std::unordered_map<const void*, Known> known_;
};

/// What an operation reads and writes, as its arguments, its results and the memory allocated inside it tell. In the
/// order of addresses. To be called for every operation of a trace, in order.
std::vector<Access> accesses_of(const OpTrace& trace, const OpRecord& op, StorageOwners& owners);

/// Brings accesses in the order of their addresses, and drops those that others contain.
void tidy(std::vector<Access>& accesses);

/// Whether the operation may use random numbers.
bool draws_numbers(const OpRecord& op);

/// Whether the operator came with torch, whose schemas are believed.
bool is_torchs_own(const OpTrace& trace, const OpRecord& op);

/// Whether it is the launch of a Triton kernel in code that torch.compile made: the Python package's operator, which
/// names all tensors that the kernel is given, and those that it may write.
bool is_compiled_kernel(const OpTrace& trace, const OpRecord& op);

/// What a collective has besides: ranks have to call them in one order, those of all communicators together.
Access order_of_collectives();

/// Why the operation has to be ordered against everything; empty: its accesses tell all.
std::string barrier_of(const OpTrace& trace, const OpRecord& op);

}  // namespace pianola::parallel
