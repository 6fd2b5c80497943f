#include <pianola/config/field.hpp>

#include <pianola/config/field_table.hpp>
#include <pianola/core/error.hpp>
#include <pianola/core/nearest_name.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace pianola {
namespace {

using Texts = std::vector<std::string>;
using Integers = std::vector<std::int64_t>;

// The names of an enumeration. The first name of a value is the one that is written.
template <class E>
struct Name {
  std::string_view name;
  E value;
};

constexpr auto names_of(ConfigTarget) {
  using enum ConfigTarget;
  return std::to_array<Name<ConfigTarget>>({{"pianola", pianola}, {"megatron", megatron}, {"bridge", bridge}});
}

constexpr auto names_of(CudaGraphImpl) {
  using enum CudaGraphImpl;
  return std::to_array<Name<CudaGraphImpl>>({{"none", none},
                                             {"local", local},
                                             {"transformer_engine", transformer_engine},
                                             {"full_iteration", full_iteration},
                                             {"per_layer", per_layer},
                                             {"callables", callables},
                                             {"iteration", iteration}});
}

constexpr auto names_of(CudaGraphModule) {
  using enum CudaGraphModule;
  return std::to_array<Name<CudaGraphModule>>({{"attn", attn},
                                               {"mlp", mlp},
                                               {"moe", moe},
                                               {"moe_router", moe_router},
                                               {"moe_preprocess", moe_preprocess},
                                               {"mamba", mamba}});
}

constexpr auto names_of(InferenceGraphScope) {
  using enum InferenceGraphScope;
  return std::to_array<Name<InferenceGraphScope>>({{"none", none}, {"layer", layer}, {"block", block}});
}

constexpr auto names_of(RecomputeGranularity) {
  using enum RecomputeGranularity;
  return std::to_array<Name<RecomputeGranularity>>({{"full", full}, {"selective", selective}});
}

constexpr auto names_of(TokenDispatcher) {
  using enum TokenDispatcher;
  return std::to_array<Name<TokenDispatcher>>({{"allgather", allgather}, {"alltoall", alltoall}, {"flex", flex}});
}

constexpr auto names_of(TransformerImpl) {
  using enum TransformerImpl;
  return std::to_array<Name<TransformerImpl>>(
      {{"local", local}, {"transformer_engine", transformer_engine}, {"inference_optimized", inference_optimized}});
}

template <class E>
std::string_view name_of(E value) {
  for (const auto& known : names_of(E{})) {
    if (known.value == value) return known.name;
  }
  return "";
}

template <class E>
std::vector<std::string_view> all_names() {
  std::vector<std::string_view> names;
  for (const auto& known : names_of(E{})) names.push_back(known.name);
  return names;
}

// --- What is accepted, in words ---

std::string accepted(const bool&) { return "true or false"; }
std::string accepted(const int&) { return "an integer"; }
std::string accepted(const double&) { return "a number"; }
std::string accepted(const std::string&) { return "a text"; }
std::string accepted(const std::vector<int>&) { return "a list of integers"; }
std::string accepted(const Texts&) { return "a list of texts"; }

template <class E>
requires std::is_enum_v<E> std::string accepted(const E&) {
  return fmt::format("one of {}", fmt::join(all_names<E>(), ", "));
}

std::string accepted(const std::vector<CudaGraphModule>&) {
  return fmt::format("a list of {}", fmt::join(all_names<CudaGraphModule>(), ", "));
}

template <class T>
std::string accepted(const std::optional<T>&) {
  return accepted(T{}) + ", or null";
}

// --- Member to value ---

ConfigValue value_of(bool yes) { return yes; }
ConfigValue value_of(int number) { return std::int64_t{number}; }
ConfigValue value_of(double number) { return number; }
ConfigValue value_of(const std::string& text) { return text; }
ConfigValue value_of(const std::vector<int>& numbers) { return Integers(numbers.begin(), numbers.end()); }
ConfigValue value_of(const Texts& texts) { return texts; }

template <class E>
requires std::is_enum_v<E> ConfigValue value_of(E value) { return std::string(name_of(value)); }

ConfigValue value_of(const std::vector<CudaGraphModule>& modules) {
  Texts names;
  for (const CudaGraphModule module : modules) names.emplace_back(name_of(module));
  return names;
}

template <class T>
ConfigValue value_of(const std::optional<T>& value) {
  return value ? value_of(*value) : ConfigValue();
}

// --- Value to member: each says whether it could, and may add what is wrong. ---

struct Refusal {
  std::string hint = {};
};

template <class T>
const T* as(const ConfigValue& value) {
  return std::get_if<T>(&value);
}

bool read(const ConfigValue& value, bool& target, Refusal&) {
  if (!as<bool>(value)) return false;
  target = *as<bool>(value);
  return true;
}

bool read_integer(std::int64_t number, int& target, Refusal& refusal) {
  if (!std::in_range<int>(number)) {
    refusal.hint = "; that is too large";
    return false;
  }
  target = static_cast<int>(number);
  return true;
}

bool read(const ConfigValue& value, int& target, Refusal& refusal) {
  return as<std::int64_t>(value) && read_integer(*as<std::int64_t>(value), target, refusal);
}

bool read(const ConfigValue& value, double& target, Refusal&) {
  if (as<std::int64_t>(value)) {
    target = static_cast<double>(*as<std::int64_t>(value));
  } else if (as<double>(value)) {
    target = *as<double>(value);
  } else {
    return false;
  }
  return true;
}

// YAML reads a version that is not in quotes as a number, which loses zeros: 2.10 is 2.1.
bool read(const ConfigValue& value, std::string& target, Refusal& refusal) {
  if (as<double>(value) || as<std::int64_t>(value)) refusal.hint = "; write it in quotes";
  if (!as<std::string>(value)) return false;
  target = *as<std::string>(value);
  return true;
}

bool read(const ConfigValue& value, std::vector<int>& target, Refusal& refusal) {
  std::vector<int> numbers;
  if (as<std::int64_t>(value)) {
    if (!read_integer(*as<std::int64_t>(value), numbers.emplace_back(), refusal)) return false;
  } else if (as<Integers>(value)) {
    for (const std::int64_t number : *as<Integers>(value)) {
      if (!read_integer(number, numbers.emplace_back(), refusal)) return false;
    }
  } else if (!as<std::monostate>(value) && !(as<Texts>(value) && as<Texts>(value)->empty())) {
    return false;
  }
  target = std::move(numbers);
  return true;
}

Texts split(std::string_view text) {
  Texts parts;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    std::string_view part = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    while (part.starts_with(' ')) part.remove_prefix(1);
    while (part.ends_with(' ')) part.remove_suffix(1);
    if (!part.empty()) parts.emplace_back(part);
  }
  return parts;
}

bool read(const ConfigValue& value, Texts& target, Refusal&) {
  if (as<Texts>(value)) {
    target = *as<Texts>(value);
  } else if (as<std::string>(value)) {
    target = split(*as<std::string>(value));
  } else if (as<std::monostate>(value) || (as<Integers>(value) && as<Integers>(value)->empty())) {
    target.clear();
  } else {
    return false;
  }
  return true;
}

template <class E>
bool read_name(const std::string& text, E& target, Refusal& refusal) {
  for (const auto& known : names_of(E{})) {
    if (known.name != text) continue;
    target = known.value;
    return true;
  }
  refusal.hint = did_you_mean(text, all_names<E>());
  return false;
}

template <class E>
requires std::is_enum_v<E>
bool read(const ConfigValue& value, E& target, Refusal& refusal) {
  return as<std::string>(value) && read_name(*as<std::string>(value), target, refusal);
}

bool read(const ConfigValue& value, std::vector<CudaGraphModule>& target, Refusal& refusal) {
  Texts names;
  std::vector<CudaGraphModule> modules;
  if (!read(value, names, refusal)) return false;
  for (const std::string& name : names) {
    if (!read_name(name, modules.emplace_back(), refusal)) return false;
  }
  target = std::move(modules);
  return true;
}

template <class T>
bool read(const ConfigValue& value, std::optional<T>& target, Refusal& refusal) {
  if (as<std::monostate>(value)) {
    target.reset();
    return true;
  }
  T read_value{};
  if (!read(value, read_value, refusal)) return false;
  target = std::move(read_value);
  return true;
}

// --- Value to text ---

std::string text_of(std::monostate) { return "unset"; }
std::string text_of(bool yes) { return yes ? "true" : "false"; }
std::string text_of(std::int64_t number) { return std::to_string(number); }
std::string text_of(double number) { return fmt::format("{}", number); }
std::string text_of(const std::string& text) { return '"' + text + '"'; }

template <class T>
std::string text_of(const std::vector<T>& list) {
  Texts items;
  for (const T& item : list) items.push_back(text_of(item));
  return fmt::format("[{}]", fmt::join(items, ", "));
}

std::string got(const ConfigValue& value) { return as<std::monostate>(value) ? "null" : written_out(value); }

}  // namespace

std::string written_out(const ConfigValue& value) {
  return std::visit([](const auto& held) { return text_of(held); }, value);
}

std::string ConfigField::path() const {
  return section.empty() ? std::string(name) : fmt::format("{}.{}", section, name);
}

std::string ConfigField::accepts() const {
  const CudaGraphConfig any;
  return std::visit([&](auto pointer) { return accepted(any.*pointer); }, member);
}

ConfigValue ConfigField::get(const CudaGraphConfig& config) const {
  return std::visit([&](auto pointer) { return value_of(config.*pointer); }, member);
}

void ConfigField::set(CudaGraphConfig& config, const ConfigValue& value) const {
  Refusal refusal;
  if (std::visit([&](auto pointer) { return read(value, config.*pointer, refusal); }, member)) return;
  throw ConfigError({.what = fmt::format("{}: expected {}, got {}{}", path(), accepts(), got(value), refusal.hint)});
}

std::span<const ConfigField> config_fields() noexcept { return config_field_table(); }

const ConfigField* find_config_field(std::string_view key) noexcept {
  for (const ConfigField& field : config_field_table()) {
    const bool whole = key.size() == field.section.size() + 1 + field.name.size() && key.ends_with(field.name) &&
                       key.starts_with(field.section) && key[field.section.size()] == '.';
    if (key == field.name || whole) return &field;
  }
  return nullptr;
}

const ConfigField& config_field(std::string_view key) {
  if (const ConfigField* found = find_config_field(key)) return *found;
  std::vector<std::string_view> names;
  for (const ConfigField& field : config_field_table()) names.push_back(field.name);
  const std::string_view name = key.substr(key.rfind('.') + 1);  // npos + 1 is 0
  throw ConfigError({.what = fmt::format("there is no key '{}'{}", key, did_you_mean(name, names))});
}

}  // namespace pianola
