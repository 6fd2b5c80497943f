#include <pianola/training/batch_difference.hpp>

#include <pianola/callable/structure.hpp>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>

#include <fmt/format.h>

#include <sstream>
#include <vector>

namespace pianola::training {
namespace {

constexpr const char* kSameStructure = "give every batch the structure of the first one, or StaticInputs of its own";

bool is_none(const c10::IValue& value) { return value.isNone() || (value.isTensor() && !value.toTensor().defined()); }
bool is_tensor(const c10::IValue& value) { return value.isTensor() && !is_none(value); }
bool is_container(const c10::IValue& value) { return value.isList() || value.isTuple() || value.isGenericDict(); }

std::string constant(const c10::IValue& value) {
  if (value.isString()) return fmt::format("'{}'", value.toStringRef());
  std::ostringstream text;
  text << value;
  return text.str();
}

std::string in_words(const c10::IValue& value) {
  if (is_none(value)) return "None";
  if (value.isTensor()) return "a tensor";
  if (value.isList()) return fmt::format("a list of {}", value.toListRef().size());
  if (value.isTuple()) return fmt::format("a tuple of {}", value.toTupleRef().elements().size());
  if (value.isGenericDict()) return fmt::format("a dict of {}", value.toGenericDict().size());
  return constant(value);
}

bool same(const c10::IValue& first, const c10::IValue& now) {
  std::vector<at::Tensor> tensors;
  return !callable::Structure(first, "").flatten(now, tensors);
}

Diagnosis of_values(const c10::IValue& first, const c10::IValue& now, const std::string& path) {
  Diagnosis diagnosis{.what = fmt::format("{}: expected {}, got {}", path, in_words(first), in_words(now)),
                      .fix = kSameStructure};
  if ((is_none(first) && is_tensor(now)) || (is_tensor(first) && is_none(now))) {
    diagnosis.fix = "give a tensor in every batch (a neutral one where there is nothing), or None in every batch";
  } else if (!is_none(first) && !is_tensor(first) && !is_container(first)) {
    diagnosis.fix = "pass what changes as a tensor: a captured step freezes numbers and strings";
  }
  return diagnosis;
}

// Where all entries are the same the difference is in their number or kind.
template <typename Entries>
Diagnosis of_entries(const Entries& first, const Entries& now, const Diagnosis& otherwise, const std::string& path) {
  for (std::size_t i = 0; first.size() == now.size() && i < first.size(); ++i) {
    if (!same(first[i], now[i])) return batch_difference(first[i], now[i], fmt::format("{}[{}]", path, i));
  }
  return otherwise;
}

Diagnosis of_dicts(const c10::impl::GenericDict& first, const c10::impl::GenericDict& now, const Diagnosis& otherwise,
                   const std::string& path) {
  for (const auto& entry : first) {
    if (now.contains(entry.key())) continue;
    return {.what = fmt::format("{} lacks the key {}", path, constant(entry.key())), .fix = kSameStructure};
  }
  for (const auto& entry : now) {
    if (first.contains(entry.key())) continue;
    return {.what = fmt::format("{} has the key {}, which the first batch did not have", path, constant(entry.key())),
            .fix = kSameStructure};
  }
  for (const auto& entry : first) {
    const c10::IValue value = now.at(entry.key());
    if (same(entry.value(), value)) continue;
    return batch_difference(entry.value(), value, fmt::format("{}[{}]", path, constant(entry.key())));
  }
  return otherwise;
}

}  // namespace

Diagnosis batch_difference(const c10::IValue& first, const c10::IValue& now, const std::string& path) {
  const Diagnosis otherwise = of_values(first, now, path);
  if (first.isList() && now.isList()) return of_entries(first.toListRef(), now.toListRef(), otherwise, path);
  if (first.isTuple() && now.isTuple()) {
    return of_entries(first.toTupleRef().elements().vec(), now.toTupleRef().elements().vec(), otherwise, path);
  }
  if (first.isGenericDict() && now.isGenericDict()) {
    return of_dicts(first.toGenericDict(), now.toGenericDict(), otherwise, path);
  }
  return otherwise;
}

}  // namespace pianola::training
