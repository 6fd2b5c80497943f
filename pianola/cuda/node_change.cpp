#include <pianola/cuda/node_change.hpp>

#include <pianola/cuda/error_codes.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
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

// Addresses lie where compilers align them. @return  Whether every word is clear.
bool keep_addresses(const KernelNode& captured, std::vector<std::byte>& anew, const MemoryAnew& memory) {
  for (const KernelParameter& parameter : captured.function->parameters) {
    for (std::size_t at = parameter.offset; at + sizeof(std::uint64_t) <= parameter.offset + parameter.size;
         at += sizeof(std::uint64_t)) {
      const std::uint64_t was = word_at(captured.arguments, at), is = word_at(anew, at);
      if (is == was) continue;
      if (addresses_a_result(was, is, memory)) {
        std::memcpy(anew.data() + at, &was, sizeof was);
      } else if (std::any_of(memory.all.begin(), memory.all.end(),
                             [&](const ByteSpan& span) { return span.contains(is); })) {
        return false;
      }
    }
  }
  return true;
}

bool is_same(const MemcpyNode& a, const MemcpyNode& b) {
  return a.source == b.source && a.destination == b.destination && a.bytes == b.bytes && a.rows == b.rows;
}

bool is_same(const MemsetNode& a, const MemsetNode& b) {
  return a.destination == b.destination && a.value == b.value && a.element_bytes == b.element_bytes &&
         a.bytes == b.bytes && a.rows == b.rows;
}

}  // namespace

std::optional<NodeChange> NodeChange::between(const GraphNode& captured, CUgraphNode anew, NodeReader& reader,
                                              const MemoryAnew& memory, const Driver& driver) {
  const GraphNode other = reader.read(anew);
  if (other.type != captured.type) return std::nullopt;
  if (captured.memset() != nullptr && other.memset() != nullptr) {
    return is_same(*captured.memset(), *other.memset()) ? std::optional<NodeChange>(std::in_place) : std::nullopt;
  }
  if (captured.memcpy() != nullptr && other.memcpy() != nullptr) {
    return is_same(*captured.memcpy(), *other.memcpy()) ? std::optional<NodeChange>(std::in_place) : std::nullopt;
  }
  const KernelNode* const before = captured.kernel();
  const KernelNode* const after = other.kernel();
  if (before == nullptr || after == nullptr || before->function != after->function || before->arguments.empty() ||
      before->arguments.size() != after->arguments.size()) {
    return std::nullopt;
  }
  NodeChange change;
  check(driver.graph_kernel_node_get_params(anew, &change.kernel_), "cuGraphKernelNodeGetParams");
  change.arguments_ = after->arguments;
  if (!keep_addresses(*before, change.arguments_, memory)) return std::nullopt;
  for (const KernelParameter& parameter : before->function->parameters) {
    change.pointers_.push_back(change.arguments_.data() + parameter.offset);
  }
  change.kernel_.extra = nullptr;
  return change;
}

void NodeChange::apply(CUgraphExec executable, CUgraphNode node, const Driver& driver) {
  if (pointers_.empty()) return;
  kernel_.kernelParams = pointers_.data();
  check(driver.graph_exec_kernel_node_set_params(executable, node, &kernel_), "cuGraphExecKernelNodeSetParams");
}

}  // namespace pianola
