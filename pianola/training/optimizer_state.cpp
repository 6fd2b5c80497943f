#include <pianola/training/optimizer_state.hpp>

#include <pianola/core/error.hpp>
#include <pianola/trace/describe.hpp>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/jit_type.h>
#include <c10/core/ScalarType.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <set>

namespace pianola::training {
namespace {

using Dict = c10::impl::GenericDict;
using List = c10::impl::GenericList;
using Kind = GroupOption::Kind;

Dict new_dict() { return Dict(c10::AnyType::get(), c10::AnyType::get()); }
List new_list() { return List(c10::AnyType::get()); }

// A number, where the value is one: Python's are int, float or bool, and torch allows tensors of one element.
std::optional<double> number_in(const c10::IValue& value) {
  if (value.isDouble()) return value.toDouble();
  if (value.isInt()) return static_cast<double>(value.toInt());
  if (value.isBool()) return value.toBool() ? 1 : 0;
  if (value.isTensor() && value.toTensor().defined() && value.toTensor().numel() == 1) {
    return value.toTensor().item<double>();
  }
  return std::nullopt;
}

constexpr const char* kSameKind = "load the state of an optimizer of the same kind, over the same groups of parameters";

bool is_sequence(const c10::IValue& value) { return value.isTuple() || value.isList(); }

std::vector<c10::IValue> elements_of(const c10::IValue& value) {
  if (value.isTuple()) return value.toTupleRef().elements().vec();
  return value.toListRef().vec();
}

bool same(const c10::IValue& one, const c10::IValue& other) {
  if (is_sequence(one) && is_sequence(other)) {
    const auto left = elements_of(one), right = elements_of(other);
    return std::ranges::equal(left, right, &same);
  }
  const std::optional<double> left = number_in(one);
  return left && left == number_in(other);
}

std::string in_words(const c10::IValue& value) {
  if (value.isTensor() && value.toTensor().defined()) {
    return "a tensor " + trace::type_of(value.toTensor());
  }
  if (is_sequence(value)) {
    std::vector<std::string> parts;
    for (const c10::IValue& element : elements_of(value)) parts.push_back(in_words(element));
    return fmt::format("({})", fmt::join(parts, ", "));
  }
  if (value.isDouble()) return fmt::format("{}", value.toDouble());
  if (value.isInt()) return fmt::format("{}", value.toInt());
  if (value.isBool()) return value.toBool() ? "True" : "False";
  if (value.isString()) return value.toStringRef();
  return "a value of type " + value.tagKind();
}

Dict write_group(const GroupState& group, std::int64_t first) {
  Dict written = new_dict();
  for (const GroupOption& option : group.options) {
    const bool number = option.kind == Kind::number;
    written.insert(option.name, number ? c10::IValue(option.value.toTensor().item<double>()) : option.value);
  }
  List indices = new_list();
  for (std::size_t i = 0; i < group.parameters; ++i) indices.push_back(first + static_cast<std::int64_t>(i));
  written.insert("params", indices);
  return written;
}

}  // namespace

std::vector<std::vector<at::Tensor>> tensors_of(std::span<const StateColumn> columns) {
  std::vector<std::vector<at::Tensor>> lists;
  for (const StateColumn& column : columns) lists.push_back(column.tensors);
  return lists;
}

void add_columns(std::vector<NamedTensor>& all, std::span<const StateColumn> columns, std::size_t first) {
  for (const StateColumn& column : columns) {
    for (std::size_t i = 0; i < column.tensors.size(); ++i) {
      all.push_back({.name = "state." + std::to_string(first + i) + "." + column.name, .tensor = column.tensors[i]});
    }
  }
}

c10::IValue write_state_dict(std::span<const GroupState> groups, const std::vector<std::vector<bool>>& saved) {
  Dict state = new_dict();
  List written = new_list();
  std::int64_t index = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    written.push_back(write_group(groups[g], index));
    for (std::size_t i = 0; i < groups[g].parameters; ++i, ++index) {
      if (groups[g].columns.empty() || !saved[g][i]) continue;
      Dict entry = new_dict();
      for (const StateColumn& column : groups[g].columns) entry.insert(column.name, column.tensors[i]);
      state.insert(index, entry);
    }
  }
  Dict all = new_dict();
  all.insert("state", state);
  all.insert("param_groups", written);
  return all;
}

// Walks a state, knowing where it is.
class LoadPlan::Reader {
 public:
  Reader(LoadPlan& plan, std::string optimizer) : plan_(plan), optimizer_(std::move(optimizer)) {}

  void read(std::span<const GroupState> groups, const c10::IValue& value) {
    const Dict all = dict(value, "the state");
    const std::vector<c10::IValue> saved = list(member(all, "the state", "param_groups"), "param_groups");
    const Dict state = dict(member(all, "the state", "state"), "state");
    if (saved.size() != groups.size()) {
      refuse("it has " + std::to_string(saved.size()) + " parameter groups, the optimizer " +
             std::to_string(groups.size()));
    }
    std::set<std::int64_t> known;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      read_group(groups[g], "param_groups[" + std::to_string(g) + "]", saved[g], state, known);
    }
    for (const auto& entry : state) {
      if (!entry.key().isInt() || !known.contains(entry.key().toInt())) {
        refuse("state[" + in_words(entry.key()) + "] is of a parameter that no group names");
      }
    }
  }

 private:
  void read_group(const GroupState& group, const std::string& path, const c10::IValue& value, const Dict& state,
                  std::set<std::int64_t>& known) {
    const Dict saved = dict(value, path);
    for (const GroupOption& option : group.options) read_option(option, path, saved);
    const std::vector<c10::IValue> indices = list(member(saved, path, "params"), path + "['params']");
    if (indices.size() != group.parameters) {
      refuse(path + " has " + std::to_string(indices.size()) + " parameters, the optimizer's group " +
             std::to_string(group.parameters));
    }
    std::vector<bool>& found = plan_.found_.emplace_back();
    for (std::size_t i = 0; i < indices.size(); ++i) {
      if (!indices[i].isInt()) refuse(path + "['params'] must hold numbers, got " + in_words(indices[i]));
      const std::int64_t index = indices[i].toInt();
      if (!known.insert(index).second) refuse(path + "['params'] names " + std::to_string(index) + " a second time");
      found.push_back(read_entry(group.columns, i, "state[" + std::to_string(index) + "]", state, index));
    }
  }

  void read_option(const GroupOption& option, const std::string& path, const Dict& saved) {
    if (option.kind == Kind::layout || (option.may_lack && !saved.contains(option.name))) return;
    const c10::IValue value = member(saved, path, option.name);
    const std::string name = path + "['" + option.name + "']";
    if (option.kind == Kind::fixed) {
      if (same(value, option.value)) return;
      refuse(name + " is " + in_words(value) + ", the optimizer's is " + in_words(option.value),
             "construct the optimizer with the options of the state: captured steps keep the options that they have");
    }
    const std::optional<double> number = number_in(value);
    if (!number || !std::isfinite(*number) || *number < 0) {
      refuse(name + " must be a finite number of 0 or more, got " +
             (number ? fmt::format("{}", *number) : in_words(value)));
    }
    plan_.fills_.emplace_back(option.value.toTensor(), *number);
  }

  // Returns whether there is an entry.
  bool read_entry(std::span<const StateColumn> columns, std::size_t i, const std::string& path, const Dict& state,
                  std::int64_t index) {
    const Dict entry = state.contains(index) ? dict(state.at(index), path) : new_dict();
    std::size_t present = 0;
    for (const auto& saved : entry) {
      if (saved.value().isNone()) continue;
      const bool known = saved.key().isString() && std::ranges::any_of(columns, [&](const StateColumn& column) {
                           return column.name == saved.key().toStringRef();
                         });
      if (!known) refuse(path + " holds " + in_words(saved.key()) + ", which has no meaning for this optimizer");
      ++present;
    }
    for (const StateColumn& column : columns) {
      if (present == 0) {
        plan_.fills_.emplace_back(column.tensors[i], column.initial);
      } else {
        read_state(column, i, path, member(entry, path, column.name));
      }
    }
    return present > 0;
  }

  void read_state(const StateColumn& column, std::size_t i, const std::string& path, const c10::IValue& value) {
    const at::Tensor& target = column.tensors[i];
    const std::string name = path + "['" + column.name + "']";
    if (value.isTensor() && value.toTensor().defined()) {
      const at::Tensor& source = value.toTensor();
      const bool fits = source.layout() == at::kStrided && !source.is_complex() &&
                        (column.counter ? source.numel() == 1 : source.sizes() == target.sizes());
      if (!fits) refuse(name + " is " + in_words(value) + ", the optimizer's is " + in_words(target));
      plan_.copies_.emplace_back(target, column.counter ? source.reshape({}) : source);
      return;
    }
    const std::optional<double> number = column.counter ? number_in(value) : std::nullopt;
    if (!number || !(*number >= 0)) refuse(name + " must be a tensor, got " + in_words(value));
    plan_.fills_.emplace_back(target, *number);
  }

  [[nodiscard]] Dict dict(const c10::IValue& value, const std::string& path) const {
    if (!value.isGenericDict()) refuse(path + " must be a dict, got " + in_words(value));
    return value.toGenericDict();
  }

  [[nodiscard]] std::vector<c10::IValue> list(const c10::IValue& value, const std::string& path) const {
    if (!is_sequence(value)) refuse(path + " must be a list, got " + in_words(value));
    return elements_of(value);
  }

  [[nodiscard]] c10::IValue member(const Dict& dict, const std::string& path, const std::string& name) const {
    if (!dict.contains(name)) refuse(path + " lacks '" + name + "'");
    return dict.at(name);
  }

  [[noreturn]] void refuse(const std::string& why, const std::string& fix = kSameKind) const {
    throw UsageError(
        {.what = "this state cannot be loaded into " + optimizer_ + ": " + why + "; nothing was changed", .fix = fix});
  }

  LoadPlan& plan_;
  std::string optimizer_;
};

LoadPlan::LoadPlan(const std::string& optimizer, std::span<const GroupState> groups, const c10::IValue& state) {
  Reader(*this, optimizer).read(groups, state);
}

std::size_t LoadPlan::found(std::size_t group, const std::vector<std::size_t>& indices) const {
  return static_cast<std::size_t>(std::ranges::count_if(indices, [&](std::size_t i) { return found_[group][i]; }));
}

void LoadPlan::run() const {
  const at::NoGradGuard no_grad;
  for (const auto& [to, from] : copies_) to.copy_(from);
  for (const auto& [target, value] : fills_) target.fill_(value);
}

}  // namespace pianola::training
