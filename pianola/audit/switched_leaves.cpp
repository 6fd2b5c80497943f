#include <pianola/audit/switched_leaves.hpp>

#include <pianola/audit/words.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string>

namespace pianola::auditing {
namespace {

// Those that were switched the same way.
class Switched {
 public:
  void add(std::string name, std::optional<std::size_t> first_op) {
    ++count_;
    if (!name.empty()) names_.push_back(std::move(name));
    if (first_op) first_op_ = std::min(first_op_.value_or(*first_op), *first_op);
  }

  [[nodiscard]] bool any() const noexcept { return count_ > 0; }

  [[nodiscard]] Finding finding(const ObservedRuns& runs, const RunPair& pair, bool unfrozen) const {
    Finding finding = first_op_ ? runs.finding("PG501", {pair.b, *first_op_}) : Finding::of("PG501");
    finding.iteration = static_cast<int>(pair.b) + 1;
    finding.what = fmt::format("{} {} {} between iterations", words(), count_ == 1 ? "was" : "were",
                               unfrozen ? "unfrozen" : "frozen");
    finding.evidence =
        fmt::format("requires_grad is {} in {}, {} in {}", !unfrozen, iteration(pair.a), unfrozen, iteration(pair.b));
    finding.fix = "leave requires_grad as it is, or capture one graph per choice of what trains";
    return finding;
  }

 private:
  [[nodiscard]] std::string words() const {
    constexpr std::size_t kFew = 3;
    if (count_ == 1) return names_.empty() ? "a parameter" : names_[0];
    std::vector<std::string> shown = names_;
    const bool more = shown.size() > kFew;
    shown.resize(std::min(shown.size(), kFew));
    const std::string text = fmt::format("{} parameters", count_);
    return shown.empty() ? text : fmt::format("{} ({}{})", text, fmt::join(shown, ", "), more ? ", ..." : "");
  }

  std::size_t count_ = 0;
  std::vector<std::string> names_;
  std::optional<std::size_t> first_op_;
};

struct Both {
  Switched frozen, unfrozen;
};

void look_at_outside(const ObservedRun& a, const ObservedRun& b, Both& both) {
  for (const OutsideMemory& now : b.outside) {
    const OutsideMemory* before = a.find_outside(now.memory.identity);
    if (before == nullptr || now.tensor == nullptr || before->tensor != now.tensor) continue;
    if (before->requires_grad == now.requires_grad || b.input_at(now.memory.identity, now.data)) continue;
    std::string name = b.name_of(now.memory.identity, now.data);
    if (!name.empty()) name = "'" + name + "'";
    (now.requires_grad ? both.unfrozen : both.frozen).add(std::move(name), now.first_op);
  }
}

void look_at_inputs(const ObservedRun& a, const ObservedRun& b, Both& both) {
  for (std::size_t i = 0; i < std::min(a.inputs.size(), b.inputs.size()); ++i) {
    if (a.inputs[i].requires_grad == b.inputs[i].requires_grad) continue;
    const OutsideMemory* outside = b.find_outside(b.inputs[i].memory.identity);
    (b.inputs[i].requires_grad ? both.unfrozen : both.frozen)
        .add(fmt::format("input {}", i), outside == nullptr ? std::nullopt : std::optional(outside->first_op));
  }
}

}  // namespace

std::vector<Finding> switched_leaves(const ObservedRuns& runs, const RunPair& pair) {
  if (pair.alignment.complete && !pair.alignment.first_change) return {};
  Both both;
  look_at_outside(runs.run(pair.a), runs.run(pair.b), both);
  look_at_inputs(runs.run(pair.a), runs.run(pair.b), both);
  std::vector<Finding> findings;
  if (both.frozen.any()) findings.push_back(both.frozen.finding(runs, pair, false));
  if (both.unfrozen.any()) findings.push_back(both.unfrozen.finding(runs, pair, true));
  return findings;
}

}  // namespace pianola::auditing
