#include <pianola/audit/checks/checks.hpp>

#include <pianola/audit/words.hpp>
#include <pianola/trace/op_info.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

namespace pianola::auditing {
namespace {

double as_double(const ScalarRecord& number) {
  return std::visit([](auto value) { return static_cast<double>(value); }, number.value);
}

bool same_number(const ScalarRecord& a, const ScalarRecord& b) {
  if (a.value.index() != b.value.index()) return as_double(a) == as_double(b);  // 1 and 1.0
  if (const double* x = std::get_if<double>(&a.value)) {
    const double y = std::get<double>(b.value);
    return std::memcmp(x, &y, sizeof y) == 0 || *x == y || (std::isnan(*x) && std::isnan(y));
  }
  return a.value == b.value;
}

// Where tensors differ in shape, numbers that follow from the shapes differ with them: they are no hazard of their own.
class ShapeChanges {
 public:
  void note(std::span<const std::int64_t> a, std::span<const std::int64_t> b) {
    double all_a = 1;
    double all_b = 1;
    for (const std::int64_t size : a) all_a *= static_cast<double>(size);
    for (const std::int64_t size : b) all_b *= static_cast<double>(size);
    note(all_a, all_b);
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      note(static_cast<double>(a[i]), static_cast<double>(b[i]));
    }
  }

  [[nodiscard]] bool explain(const ScalarRecord& a, const ScalarRecord& b) const {
    const double x = as_double(a);
    const double y = as_double(b);
    const auto near = [](double p, double q) { return std::abs(p - q) <= 1e-6 * std::max(std::abs(p), std::abs(q)); };
    return std::any_of(changes_.begin(), changes_.end(), [&](const auto& change) {
      const auto [from, to] = change;
      return near(x * to, y * from) || near(x * from, y * to) || near(y - x, to - from);
    });
  }

 private:
  void note(double a, double b) {
    if (a != b && a != 0 && b != 0) changes_.insert({a, b});
  }
  std::set<std::pair<double, double>> changes_;
};

// The comparison of two runs, operation by operation.
class NumberCheck {
 public:
  NumberCheck(const ObservedRuns& runs, const RunPair& pair) : runs_(runs), pair_(pair) {}

  Findings findings() {
    for (std::size_t op = 0; op < pair_.alignment.ops; ++op) look_at(op);
    compare_host_values();
    return std::move(findings_);
  }

 private:
  [[nodiscard]] OpAt in_a(std::size_t op) const { return {pair_.a, op}; }
  [[nodiscard]] OpAt in_b(std::size_t op) const { return {pair_.b, op}; }

  void look_at(std::size_t op) {
    if (pair_.alignment.first_change && op >= pair_.alignment.first_change->op && shapes_differ(op)) return;
    const OpTrace& a = runs_.run(pair_.a).trace;
    const OpTrace& b = runs_.run(pair_.b).trace;
    const auto numbers_a = a.scalars(a.ops()[op]);
    const auto numbers_b = b.scalars(b.ops()[op]);
    for (std::size_t i = 0; i < std::min(numbers_a.size(), numbers_b.size()); ++i) {
      if (same_number(numbers_a[i], numbers_b[i]) || shape_changes_.explain(numbers_a[i], numbers_b[i])) continue;
      return add(op, numbers_a[i], numbers_b[i]);
    }
  }

  bool shapes_differ(std::size_t op) {
    const OpTrace& a = runs_.run(pair_.a).trace;
    const OpTrace& b = runs_.run(pair_.b).trace;
    bool differ = false;
    const auto look = [&](const auto& of_a, const auto& of_b) {
      for (std::size_t i = 0; i < of_a.size(); ++i) {
        if (std::ranges::equal(a.sizes(of_a[i]), b.sizes(of_b[i]))) continue;
        shape_changes_.note(a.sizes(of_a[i]), b.sizes(of_b[i]));
        differ = true;
      }
    };
    look(a.inputs(a.ops()[op]), b.inputs(b.ops()[op]));
    look(a.outputs(a.ops()[op]), b.outputs(b.ops()[op]));
    return differ;
  }

  // Backward uses the forward's numbers again.
  [[nodiscard]] bool repeats_forward(std::size_t op) const {
    const OpTrace& trace = runs_.run(pair_.a).trace;
    const OpRecord* forward = trace.forward_of(trace.ops()[op]);
    return forward != nullptr && changed_.count(static_cast<std::size_t>(forward - trace.ops().data())) != 0;
  }

  void add(std::size_t op, const ScalarRecord& before, const ScalarRecord& after) {
    changed_.insert(op);
    const OpRecord& record = runs_.op(in_a(op));
    if (repeats_forward(op) || is_one_of_many(record, before, after)) return;
    const bool makes_tensor = record.info->name == "aten::scalar_tensor" && runs_.note(in_a(op)).caller == nullptr;
    Finding finding = start(makes_tensor ? "PG303" : "PG301", op);
    const std::string argument = argument_name(record, before.argument);
    finding.what = makes_tensor ? fmt::format("{} makes a tensor of a number that changes", finding.op)
                                : fmt::format("the number '{}' of {} changes between iterations", argument, finding.op);
    finding.evidence = fmt::format("{} in {}, {} in {}", written_out(before), iteration(pair_.a), written_out(after),
                                   iteration(pair_.b));
    push(std::move(finding));
  }

  // A loop over a thousand parameters changes the same number of the same operator at one line: to find out takes time.
  bool is_one_of_many(const OpRecord& op, const ScalarRecord& before, const ScalarRecord& after) {
    constexpr int kMany = 32;
    return ++alike_[{op.info, before.argument, as_double(before), as_double(after)}] > kMany;
  }

  [[nodiscard]] Finding start(std::string_view rule, std::size_t op) const {
    return runs_.finding(runs_.called_by_optimizer(in_a(op)) ? "PG1001" : rule, in_a(op));
  }

  // One for each line: an optimizer's update has many numbers of one cause.
  void push(Finding&& finding) {
    const bool said = std::any_of(findings_.begin(), findings_.end(), [&](const Finding& other) {
      if (other.rule != finding.rule) return false;
      return finding.place.known() ? other.place == finding.place : other.what == finding.what;
    });
    if (!said) findings_.push_back(std::move(finding));
  }

  void compare_host_values() {
    const auto& values_a = runs_.run(pair_.a).host_values;
    const auto& values_b = runs_.run(pair_.b).host_values;
    for (const HostValues& before : values_a) {
      if (before.op >= pair_.alignment.ops) break;
      const auto after = std::find_if(values_b.begin(), values_b.end(), [&](const HostValues& candidate) {
        return candidate.op == before.op && candidate.tensor == before.tensor;
      });
      if (after == values_b.end() || after->bytes.size() != before.bytes.size() || after->bytes == before.bytes)
        continue;
      if (!reads_live_memory(before)) add(before, *after);
    }
  }

  // Memory of NumPy's or of the user's own, looked at anew in each run: a graph that looks at it sees its new values.
  [[nodiscard]] bool reads_live_memory(const HostValues& values) const {
    const OpAt a = in_a(values.op);
    const OpAt b = in_b(values.op);
    if (runs_.op(a).info->name == "aten::lift_fresh") return false;
    const TensorRecord& first = runs_.inputs(a)[values.tensor];
    const TensorRecord& second = runs_.inputs(b)[values.tensor];
    const OutsideMemory* outside = runs_.run(pair_.a).find_outside(first.storage);
    return outside != nullptr && outside->foreign && first.address == second.address;
  }

  void add(const HostValues& before, const HostValues& after) {
    Finding finding = start(before.number ? "PG301" : "PG303", before.op);
    finding.what = before.number
                       ? std::string("a number of the host, made a tensor, changes between iterations")
                       : fmt::format("a tensor is made of values of the host that change, and {} reads it", finding.op);
    finding.evidence = fmt::format("{} in {}, {} in {}", written_out(before), iteration(pair_.a), written_out(after),
                                   iteration(pair_.b));
    push(std::move(finding));
  }

  const ObservedRuns& runs_;
  const RunPair& pair_;
  ShapeChanges shape_changes_;
  std::set<std::size_t> changed_;  // operations
  std::map<std::tuple<const trace::OpInfo*, int, double, double>, int> alike_;
  Findings findings_;
};

}  // namespace

Findings check_numbers(const ObservedRuns& runs) {
  Findings findings;
  for (const RunPair& pair : runs.pairs()) {
    Findings of_pair = NumberCheck(runs, pair).findings();
    std::move(of_pair.begin(), of_pair.end(), std::back_inserter(findings));
  }
  return findings;
}

}  // namespace pianola::auditing
