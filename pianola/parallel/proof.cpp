#include <pianola/parallel/proof.hpp>

#include <pianola/parallel/finished_graph.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pianola::parallel {
namespace {

constexpr std::size_t kWordBits = 64;

std::string name_of(std::span<const Unit> units, std::size_t unit) {
  return fmt::format("{} (unit {})", units[unit].name, unit);
}

// Which unit each node belongs to.
using Owners = std::vector<std::optional<std::uint32_t>>;

std::string name_of_node(std::span<const Unit> units, const Owners& owners, std::uint32_t node) {
  return fmt::format("node {} of {}", node, name_of(units, *owners[node]));
}

// Fills in `owners`; returns what is wrong about them, or nothing.
std::string find_owners(std::span<const Unit> units, Owners& owners) {
  for (std::uint32_t position = 0; const Unit& unit : units) {
    if (unit.nodes.empty()) return fmt::format("{} has no nodes", name_of(units, position));
    for (const std::uint32_t node : unit.nodes) {
      if (node >= owners.size()) {
        return fmt::format("{} has node {}, but the graph has {} nodes", name_of(units, position), node, owners.size());
      }
      std::optional<std::uint32_t>& owner = owners[node];
      if (owner == position) return fmt::format("{} has node {} twice", name_of(units, position), node);
      if (owner)
        return fmt::format("{} and {} both have node {}", name_of(units, *owner), name_of(units, position), node);
      owner = position;
    }
    ++position;
  }
  const auto missing = std::find(owners.begin(), owners.end(), std::nullopt);
  return missing == owners.end() ? "" : fmt::format("node {} is in no unit", missing - owners.begin());
}

std::string find_wrong_edge(std::size_t nodes, std::span<const NodeEdge> edges) {
  for (const auto& [from, to] : edges) {
    if (std::max(from, to) >= nodes) {
      return fmt::format("an edge leads from node {} to node {}, but the graph has {} nodes", from, to, nodes);
    }
  }
  return "";
}

std::string find_broken_chain(std::span<const Unit> units, const FinishedGraph& graph) {
  for (std::size_t position = 0; const Unit& unit : units) {
    for (std::size_t next = 1; next < unit.nodes.size(); ++next) {
      if (graph.is_ancestor(unit.nodes[next - 1], unit.nodes[next])) continue;
      return fmt::format("nothing orders node {} of {} behind its node {}", unit.nodes[next], name_of(units, position),
                         unit.nodes[next - 1]);
    }
    ++position;
  }
  return "";
}

// Pairs of units, each once.
class Pairs {
 public:
  explicit Pairs(std::size_t units)
      : units_(units), row_words_((units + kWordBits - 1) / kWordBits), words_(units * row_words_) {}

  void insert(std::uint32_t one, std::uint32_t other) {
    const auto [earlier, later] = std::minmax(one, other);
    if (earlier != later) words_[later * row_words_ + earlier / kWordBits] |= std::uint64_t{1} << (earlier % kWordBits);
  }

  // Calls `visit(earlier, later)` by the later unit, then by the earlier one.
  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (std::size_t later = 0; later < units_; ++later) {
      for (std::size_t word = 0; word <= later / kWordBits; ++word) {
        for (std::uint64_t bits = words_[later * row_words_ + word]; bits != 0; bits &= bits - 1) {
          visit(word * kWordBits + static_cast<std::size_t>(std::countr_zero(bits)), later);
        }
      }
    }
  }

 private:
  std::size_t units_;
  std::size_t row_words_;
  std::vector<std::uint64_t> words_;  // a row per later unit, a bit per earlier one
};

struct Touch {
  ByteSpan bytes;
  std::uint32_t unit;
  bool write;
};

std::vector<Touch> touches_by_address(std::span<const Unit> units) {
  std::vector<Touch> touches;
  for (std::uint32_t position = 0; const Unit& unit : units) {
    for (const Access& access : unit.accesses) {
      if (!access.bytes.empty()) touches.push_back({access.bytes, position, access.write});
    }
    ++position;
  }
  std::sort(touches.begin(), touches.end(),
            [](const Touch& left, const Touch& right) { return left.bytes.begin < right.bytes.begin; });
  return touches;
}

// Pairs the unit of `touch` with those of `open`, none of which begins behind it. Drops what ends before it.
void meet(std::vector<Touch>& open, const Touch& touch, Pairs& pairs) {
  std::erase_if(open, [&](const Touch& other) { return other.bytes.end <= touch.bytes.begin; });
  for (const Touch& other : open) pairs.insert(other.unit, touch.unit);
}

// Goes through memory once, with the spans that it is in.
void add_overlaps(std::span<const Unit> units, Pairs& pairs) {
  std::vector<Touch> reads;
  std::vector<Touch> writes;
  for (const Touch& touch : touches_by_address(units)) {
    meet(writes, touch, pairs);
    if (touch.write) meet(reads, touch, pairs);
    (touch.write ? writes : reads).push_back(touch);
  }
}

void add_barriers(std::span<const Unit> units, Pairs& pairs) {
  for (std::uint32_t barrier = 0; barrier < units.size(); ++barrier) {
    if (units[barrier].barrier.empty()) continue;
    for (std::uint32_t other = 0; other < units.size(); ++other) pairs.insert(barrier, other);
  }
}

// The first bytes that both units touch, one of them writing.
std::optional<ByteSpan> shared_bytes(const Unit& earlier, const Unit& later) {
  for (const Access& one : earlier.accesses) {
    for (const Access& other : later.accesses) {
      const ByteSpan shared{std::max(one.bytes.begin, other.bytes.begin), std::min(one.bytes.end, other.bytes.end)};
      if ((one.write || other.write) && !shared.empty()) return shared;
    }
  }
  return std::nullopt;
}

// "aten::mm (unit 12) and aten::add_ (unit 40) both touch 4096 bytes at 0x7f0000000000, and nothing orders them"
std::string explain(std::span<const Unit> units, std::size_t earlier, std::size_t later, bool reversed) {
  const std::string outcome =
      reversed ? fmt::format("but {} runs first", name_of(units, later)) : "and nothing orders them";
  if (const auto bytes = shared_bytes(units[earlier], units[later])) {
    return fmt::format("{} and {} both touch {} bytes at {:#x}, {}", name_of(units, earlier), name_of(units, later),
                       bytes->size(), bytes->begin, outcome);
  }
  const auto [barrier, other] = units[earlier].barrier.empty() ? std::pair(later, earlier) : std::pair(earlier, later);
  return fmt::format("{} is a barrier ({}) to {}, {}", name_of(units, barrier), units[barrier].barrier,
                     name_of(units, other), outcome);
}

// Counts the pairs that the graph has to order, and finds the first that it does not.
void judge_pairs(std::span<const Unit> units, const FinishedGraph& graph, Proof& proof) {
  Pairs pairs(units.size());
  add_overlaps(units, pairs);
  add_barriers(units, pairs);
  pairs.for_each([&](std::size_t earlier, std::size_t later) {
    ++proof.pairs;
    const Unit& first = units[earlier];
    const Unit& second = units[later];
    if (!proof.holds() || graph.is_ancestor(first.nodes.back(), second.nodes.front())) return;
    const bool reversed = graph.is_ancestor(second.nodes.back(), first.nodes.front());
    proof.failure = explain(units, earlier, later, reversed);
  });
}

}  // namespace

Proof prove(std::span<const Unit> units, std::size_t nodes, std::span<const NodeEdge> edges) {
  Proof proof;
  Owners owners(nodes);
  proof.failure = find_owners(units, owners);
  if (!proof.holds()) return proof;
  proof.failure = find_wrong_edge(nodes, edges);
  if (!proof.holds()) return proof;

  const FinishedGraph graph(nodes, edges);
  if (const auto node = graph.node_on_cycle()) {
    proof.failure = fmt::format("{} runs behind itself", name_of_node(units, owners, *node));
    return proof;
  }
  proof.failure = find_broken_chain(units, graph);
  if (!proof.holds()) return proof;
  judge_pairs(units, graph, proof);
  return proof;
}

}  // namespace pianola::parallel
