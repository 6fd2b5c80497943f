#include <pianola/graph/named_numbers.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/nearest_name.hpp>
#include <pianola/graph/pool_state.hpp>
#include <pianola/trace/op_stream.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>
#include <utility>

namespace pianola::graph {
namespace {

// The first call may make what later ones find; the next ones are trials.
constexpr std::size_t kTrials = 3;

[[noreturn]] void refuse_options(std::string what, std::string fix) {
  throw UsageError({.what = std::move(what), .fix = std::move(fix)});
}

// Torch's functions and derivatives have paths of their own for these.
bool is_special(double value) {
  constexpr std::array kSpecial = {0.0, 1.0, 2.0, 3.0, 0.5, -1.0, -2.0};
  return !std::isfinite(value) || std::find(kSpecial.begin(), kSpecial.end(), value) != kSpecial.end();
}

bool is_constant(const std::vector<c10::IValue>& numbers) {
  return std::all_of(numbers.begin(), numbers.end(),
                     [&](const c10::IValue& number) { return same_number(number, numbers.front()); });
}

std::string in_words(const c10::IValue& number) {
  if (number.isDouble()) return fmt::format("{}", number.toDouble());
  std::ostringstream text;
  text << number;
  return text.str();
}

[[noreturn]] void refuse(std::string what, const OpTrace& trace, std::size_t operation) {
  Diagnosis diagnosis{.what = std::move(what),
                      .fix =
                          "calculate with pianola::Number and hand the result to the operation; or keep the "
                          "number in a tensor on the device",
                      .rule = "PG301"};
  if (operation != 0) {
    const OpRecord& op = trace.ops()[operation - 1];
    diagnosis.where = fmt::format("operation {} of the step ({}), {}", operation, trace.name(op), trace.place(op));
  }
  throw CaptureError(std::move(diagnosis));
}

}  // namespace

Number NamedNumbers::declare(std::string name, double value) {
  if (name.empty()) throw UsageError({.what = "a number of a graph needs a name"});
  if (!std::isfinite(value)) {
    throw UsageError({.what = fmt::format("the number '{}' is {}, which is not finite", name, value)});
  }
  const bool is_known = std::any_of(all_.begin(), all_.end(), [&](const NamedRef& one) { return one->name() == name; });
  if (is_known) {
    throw UsageError({.what = fmt::format("the graph has a number '{}' already", name),
                      .fix = fmt::format("number(\"{}\") gives it", name)});
  }
  all_.push_back(std::make_shared<NamedNumber>(std::move(name), value, changed_));
  return Number(all_.back());
}

Number NamedNumbers::find(std::string_view name) const {
  for (const NamedRef& one : all_) {
    if (one->name() == name) return Number(one);
  }
  std::vector<std::string_view> names;
  for (const NamedRef& one : all_) names.push_back(one->name());
  throw UsageError({.what = fmt::format("the graph has no number '{}'{}", name, did_you_mean(name, names)),
                    .fix = "declare it before the capture, by number(name, value)"});
}

std::vector<double> NamedNumbers::values() const {
  std::vector<double> values;
  for (const NamedRef& one : all_) values.push_back(one->value());
  return values;
}

void NamedNumbers::put(std::span<const double> values) const {
  for (std::size_t i = 0; i < all_.size(); ++i) all_[i]->put(values[i]);
}

void NamedNumbers::unbind() {
  table_.clear();
  slots_ = {};
  for (const NamedRef& one : all_) one->fix(false);
}

void NamedNumbers::give_now(const GraphNumbers& graph) {
  std::vector<c10::IValue> values;
  for (const auto& [calculation, takes_any] : table_) {
    const double value = calculation->value();
    if (!takes_any && is_special(value)) {
      throw UsageError({.what = fmt::format("{} is {}, which torch treats in a way of its own where the captured step "
                                            "uses it; nothing was launched",
                                            calculation->text(), value),
                        .fix = "set another number, or capture another graph for this one"});
    }
    values.emplace_back(value);
  }
  if (!slots_.set(values, graph)) throw Error({.what = "the numbers of the graph could not be set"});
  *changed_ = false;
}

NamedNumbers::Trials::Trials(NamedNumbers& numbers, const CaptureOptions& options, const GraphNumbers& graph)
    : numbers_(numbers), options_(options), graph_(graph) {
  if (!options.trace) refuse_options("a graph with numbers needs the trace", "leave CaptureOptions::trace on");
  if (!options.restore) {
    refuse_options("a graph with numbers cannot count its warm-up calls as steps: some are trials with other numbers",
                   "leave CaptureOptions::restore on");
  }
  const bool plans = options.plan_memory || (!options.pool.empty() && options.pool.state()->plans_all());
  if (plans && options.branches > 1) {
    refuse_options("the memory of a graph with numbers is planned for one lane, and 'branches' is set",
                   "leave 'branches' out, or plan_memory, or capture into a pool that was made without it");
  }
  options_.warmup = std::max(options_.warmup, static_cast<int>(kTrials) + 1);
  numbers_.unbind();
  graph_.keep([this](std::size_t /*operation*/) { return uses_.is_at_one(); });
}

// Far apart, each number in a way of its own, and none of those that torch treats in ways of their own.
std::vector<double> NamedNumbers::Trials::values_of_call(std::size_t call) const {
  std::vector<double> values = numbers_.values();
  if (call == 0 || call > kTrials) return values;
  constexpr std::array<double, kTrials> kFactors = {0.37, 1.93, 5.31}, kOffsets = {0.0113, 0.0271, 0.0437};
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double own = 1 + 0.013 * static_cast<double>(i);
    if (!asked_.contains(numbers_.all_[i].get())) values[i] = values[i] * kFactors[call - 1] + own * kOffsets[call - 1];
  }
  return values;
}

void NamedNumbers::Trials::run(const std::function<void()>& step) {
  const Values before = numbers_.values(), now = values_of_call(calls_++);
  uses_ = {};
  log_ = trace::OperationLog();
  NumberNotes notes;
  const auto leave = [&] {
    numbers_.put(before);
    given_ = notes.given();
    asked_.insert(notes.asked().begin(), notes.asked().end());
  };
  numbers_.put(now);
  try {
    const trace::OpStream stream({&notes, &log_, &uses_});
    step();
  } catch (...) {
    leave();
    throw;
  }
  leave();
  NumberSample sample{.arguments = {}, .given = log_.numbers()};
  for (const double value : now) sample.arguments.emplace_back(value);
  samples_.push_back(std::move(sample));
}

bool NamedNumbers::Trials::gives(const NumberNode& node, const std::vector<c10::IValue>& numbers,
                                 const std::vector<Values>& calls) const {
  const Values before = numbers_.values();
  bool all = true;
  for (std::size_t i = 0; i < calls.size() && all; ++i) {
    numbers_.put(calls[i]);
    all = same_number(node.value(), numbers[i]);
  }
  numbers_.put(before);
  return all;
}

// Nothing where none gives it, or several do.
std::optional<NamedNumbers::Trials::Calculation> NamedNumbers::Trials::calculation_of(
    const NumberEvidence::Given& given, const std::vector<Values>& calls) const {
  std::vector<Calculation> found;
  const auto look = [&](std::size_t source, const NumberNodeRef& node) {
    if (gives(*node, given.numbers, calls)) found.push_back({.source = source, .node = node});
  };
  for (const int source : given.sources)
    look(static_cast<std::size_t>(source), given_[static_cast<std::size_t>(source)]);
  for (const int source : given.sources) {
    if (!found.empty()) break;
    for (const NumberNodeRef& form : forms_of(given_[static_cast<std::size_t>(source)])) {
      look(static_cast<std::size_t>(source), form);
    }
  }
  if (found.size() != 1) return std::nullopt;
  return found.front();
}

void NamedNumbers::Trials::check_all_bound(const std::set<std::size_t>& bound) const {
  for (std::size_t i = 0; i < given_.size(); ++i) {
    std::set<const NamedNumber*> named;
    given_[i]->collect(named);
    std::erase_if(named, [&](const NamedNumber* one) { return asked_.contains(one); });
    if (named.empty() || bound.contains(i)) continue;
    throw CaptureError({.what = fmt::format("what the step does with {} cannot be followed: no operation was given "
                                            "it, or other numbers gave the same",
                                            given_[i]->text()),
                        .fix = "hand each number to one operation at a time; or keep it in a tensor on the device",
                        .rule = "PG301"});
  }
}

void NamedNumbers::Trials::bind(const OpTrace& trace) {
  samples_.pop_back();  // the recording's own
  const NumberEvidence evidence = NumberSlots::evidence(uses_, log_, samples_, graph_, {});
  std::vector<Values> calls = {numbers_.values()};
  for (const auto& arguments : evidence.arguments) {
    Values& values = calls.emplace_back();
    for (const c10::IValue& argument : arguments) values.push_back(argument.toDouble());
  }
  std::set<std::size_t> bound;
  std::vector<NumberSlot> slots;
  std::vector<Entry> table;
  for (const NumberEvidence::Given& given : evidence.given) {
    if (is_constant(given.numbers)) continue;
    const auto calculation = calculation_of(given, calls);
    if (!calculation) {
      const auto other = std::find_if(given.numbers.begin(), given.numbers.end(), [&](const c10::IValue& number) {
        return !same_number(number, given.numbers.front());
      });
      refuse(fmt::format("an operation was given {} in one call and {} in another, which is none of the numbers that "
                         "the step handed to it",
                         in_words(given.numbers.front()), in_words(*other)),
             trace, given.operation);
    }
    if (!given.can_be_set) {
      refuse(fmt::format("the operation that is given {} cannot be given another number in a replay",
                         calculation->node->text()),
             trace, given.operation);
    }
    bound.insert(calculation->source);
    slots.push_back({.operation = given.operation, .argument = given.argument, .value = table.size()});
    table.push_back({.calculation = calculation->node, .takes_any = given.is_direct});
  }
  check_all_bound(bound);
  numbers_.table_ = std::move(table);
  numbers_.slots_ = NumberSlots(uses_, slots);
  for (const NamedRef& one : numbers_.all_) one->fix(asked_.contains(one.get()));
  *numbers_.changed_ = false;
}

}  // namespace pianola::graph
