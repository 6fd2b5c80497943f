#include <pianola/cuda/node_change.hpp>

#include <pianola/cuda/error_codes.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <utility>

namespace pianola {
namespace {

std::uint64_t word_at(const std::vector<std::byte>& bytes, std::size_t offset) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes.data() + offset, sizeof word);
  return word;
}

bool addresses_a_result(std::uint64_t captured, std::uint64_t anew, const MemoryAnew& memory) {
  return std::any_of(memory.results.begin(), memory.results.end(), [&](const MovedResult& result) {
    return anew - result.anew < result.bytes && captured - result.captured == anew - result.anew;
  });
}

// Addresses lie where compilers align them.
template <typename Visit>
void for_each_word(const KernelNode& kernel, const Visit& visit) {
  for (const KernelParameter& parameter : kernel.function->parameters) {
    for (std::size_t at = parameter.offset; at + sizeof(std::uint64_t) <= parameter.offset + parameter.size;
         at += sizeof(std::uint64_t)) {
      visit(at);
    }
  }
}

// @return  Whether every word is clear.
bool keep_addresses(const KernelNode& captured, std::vector<std::byte>& anew, const MemoryAnew& memory) {
  bool all_clear = true;
  for_each_word(captured, [&](std::size_t at) {
    const std::uint64_t was = word_at(captured.arguments, at), is = word_at(anew, at);
    if (is == was) return;
    if (addresses_a_result(was, is, memory)) {
      std::memcpy(anew.data() + at, &was, sizeof was);
      return;
    }
    all_clear = all_clear && std::none_of(memory.all.begin(), memory.all.end(),
                                          [&](const ByteSpan& span) { return span.contains(is); });
  });
  return all_clear;
}

// In a block of another function, which cannot be compared with the captured one: what addresses a result is one. @return  Whether
// nothing else was allocated, which some word might address.
bool put_addresses(const KernelNode& launched, std::vector<std::byte>& anew, const MemoryAnew& memory) {
  const bool are_all_results = std::all_of(memory.all.begin(), memory.all.end(), [&](const ByteSpan& span) {
    return std::any_of(memory.results.begin(), memory.results.end(),
                       [&](const MovedResult& result) { return span.contains(result.anew); });
  });
  if (!are_all_results) return false;
  for_each_word(launched, [&](std::size_t at) {
    const std::uint64_t is = word_at(anew, at);
    for (const MovedResult& result : memory.results) {
      if (is - result.anew >= result.bytes) continue;
      const std::uint64_t was = result.captured + (is - result.anew);
      std::memcpy(anew.data() + at, &was, sizeof was);
      break;
    }
  });
  return true;
}

bool is_same(const MemcpyNode& a, const MemcpyNode& b) {
  return a.source == b.source && a.destination == b.destination && a.bytes == b.bytes && a.rows == b.rows;
}

bool is_on_device(CUmemorytype type) { return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED; }

// Where a copy of other tensors begins. Nothing: that may be scratch memory.
std::optional<CUdeviceptr> begin_of(CUdeviceptr captured, CUdeviceptr anew, const MemoryAnew& memory) {
  if (addresses_a_result(captured, anew, memory)) return captured;
  const bool is_scratch =
      std::any_of(memory.all.begin(), memory.all.end(), [&](const ByteSpan& span) { return span.contains(anew); });
  return is_scratch ? std::nullopt : std::optional(anew);
}

bool is_same(const MemsetNode& a, const MemsetNode& b) {
  return a.destination == b.destination && a.value == b.value && a.element_bytes == b.element_bytes &&
         a.bytes == b.bytes && a.rows == b.rows;
}

}  // namespace

std::optional<NodeChange> NodeChange::between(const GraphNode& captured, CUgraphNode anew, NodeReader& reader,
                                              const MemoryAnew& memory, const Driver& driver, OtherFunctions others) {
  const GraphNode other = reader.read(anew);
  if (other.type != captured.type) return std::nullopt;
  if (captured.memset() != nullptr && other.memset() != nullptr) {
    return of_fills(captured, *other.memset(), memory, driver);
  }
  if (captured.memcpy() != nullptr && other.memcpy() != nullptr) {
    return of_copies(captured, *other.memcpy(), memory, driver);
  }
  const KernelNode* const before = captured.kernel();
  const KernelNode* const after = other.kernel();
  if (before == nullptr || after == nullptr || after->arguments.empty()) return std::nullopt;
  const bool is_other = before->function != after->function || before->arguments.size() != after->arguments.size();
  if (is_other && others == OtherFunctions::refused) return std::nullopt;
  NodeChange change;
  check(driver.graph_kernel_node_get_params(anew, &change.kernel_), "cuGraphKernelNodeGetParams");
  change.arguments_ = after->arguments;
  const bool are_clear =
      is_other ? put_addresses(*after, change.arguments_, memory) : keep_addresses(*before, change.arguments_, memory);
  if (!are_clear) return std::nullopt;
  for (const KernelParameter& parameter : after->function->parameters) {
    change.pointers_.push_back(change.arguments_.data() + parameter.offset);
  }
  change.kernel_.extra = nullptr;
  return change;
}

std::optional<NodeChange> NodeChange::of_copies(const GraphNode& captured, const MemcpyNode& anew,
                                                const MemoryAnew& memory, const Driver& driver) {
  const MemcpyNode& before = *captured.memcpy();
  // CUDA changes copies of contiguous bytes only.
  const bool can_move = before.bytes == anew.bytes && before.rows == 1 && anew.rows == 1 &&
                        before.source_type == anew.source_type && before.destination_type == anew.destination_type &&
                        is_on_device(anew.source_type) && is_on_device(anew.destination_type);
  if (!can_move) return is_same(before, anew) ? std::optional<NodeChange>(std::in_place) : std::nullopt;
  const auto source = begin_of(before.source, anew.source, memory);
  const auto destination = begin_of(before.destination, anew.destination, memory);
  if (!source || !destination) return std::nullopt;
  NodeChange change;  // also where it is as it was captured: the executable may have another by now
  check(driver.graph_memcpy_node_get_params(captured.handle, &change.copy_.emplace()), "cuGraphMemcpyNodeGetParams");
  change.copy_->srcDevice += *source - before.source;
  change.copy_->dstDevice += *destination - before.destination;
  return change;
}

std::optional<NodeChange> NodeChange::of_fills(const GraphNode& captured, const MemsetNode& anew,
                                               const MemoryAnew& memory, const Driver& driver) {
  const MemsetNode& before = *captured.memset();
  const bool can_move =
      before.bytes == anew.bytes && before.element_bytes == anew.element_bytes && before.rows == 1 && anew.rows == 1;
  if (!can_move) return is_same(before, anew) ? std::optional<NodeChange>(std::in_place) : std::nullopt;
  const auto destination = begin_of(before.destination, anew.destination, memory);
  if (!destination) return std::nullopt;
  NodeChange change;
  check(driver.graph_memset_node_get_params(captured.handle, &change.fill_.emplace()), "cuGraphMemsetNodeGetParams");
  change.fill_->dst = *destination;
  change.fill_->value = anew.value;
  return change;
}

bool NodeChange::does_as(const NodeChange& other) const noexcept {
  const auto dimensions = [](const CUDA_KERNEL_NODE_PARAMS_v2& kernel) {
    return std::tuple(kernel.func, kernel.kern, kernel.gridDimX, kernel.gridDimY, kernel.gridDimZ, kernel.blockDimX,
                      kernel.blockDimY, kernel.blockDimZ, kernel.sharedMemBytes);
  };
  return dimensions(kernel_) == dimensions(other.kernel_) && arguments_.size() == other.arguments_.size() &&
         copy_.has_value() == other.copy_.has_value() && (!copy_ || copy_->WidthInBytes == other.copy_->WidthInBytes) &&
         fill_.has_value() == other.fill_.has_value() &&
         (!fill_ || (fill_->width == other.fill_->width && fill_->value == other.fill_->value));
}

std::size_t NodeChange::words() const noexcept {
  if (fill_) return 1;
  return copy_ ? 2 : (arguments_.size() + sizeof(std::uint64_t) - 1) / sizeof(std::uint64_t);
}

std::uint64_t NodeChange::word(std::size_t index) const noexcept {
  if (fill_) return fill_->dst;
  if (copy_) return index == 0 ? copy_->srcDevice : copy_->dstDevice;
  const std::size_t at = index * sizeof(std::uint64_t);
  std::uint64_t word = 0;
  std::memcpy(&word, arguments_.data() + at, std::min(sizeof word, arguments_.size() - at));
  return word;
}

void NodeChange::set_word(std::size_t index, std::uint64_t value) noexcept {
  if (fill_) {
    fill_->dst = value;
    return;
  }
  if (copy_) {
    (index == 0 ? copy_->srcDevice : copy_->dstDevice) = value;
    return;
  }
  const std::size_t at = index * sizeof(std::uint64_t);
  std::memcpy(arguments_.data() + at, &value, std::min(sizeof value, arguments_.size() - at));
}

void NodeChange::apply(CUgraphExec executable, CUgraphNode node, const Driver& driver) {
  if (copy_ || fill_) {
    CUcontext context = nullptr;
    check(driver.ctx_get_current(&context), "cuCtxGetCurrent");
    if (copy_) {
      check(driver.graph_exec_memcpy_node_set_params(executable, node, &*copy_, context),
            "cuGraphExecMemcpyNodeSetParams");
    } else {
      check(driver.graph_exec_memset_node_set_params(executable, node, &*fill_, context),
            "cuGraphExecMemsetNodeSetParams");
    }
    return;
  }
  if (pointers_.empty()) return;
  kernel_.kernelParams = pointers_.data();
  check(driver.graph_exec_kernel_node_set_params(executable, node, &kernel_), "cuGraphExecKernelNodeSetParams");
}

}  // namespace pianola
