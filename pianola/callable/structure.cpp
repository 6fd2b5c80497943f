#include <pianola/callable/structure.hpp>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>

#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <sstream>
#include <utility>

namespace pianola::callable {
namespace {

std::string in_words(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() ? "a tensor" : "None";
  if (value.isNone()) return "None";
  if (value.isList()) return fmt::format("a list of {}", value.toListRef().size());
  if (value.isTuple()) return fmt::format("a tuple of {}", value.toTupleRef().elements().size());
  if (value.isGenericDict()) return fmt::format("a map of {}", value.toGenericDict().size());
  std::ostringstream text;
  text << value;
  return text.str();
}

bool is_none(const c10::IValue& value) { return value.isNone() || (value.isTensor() && !value.toTensor().defined()); }

std::string key_text(const c10::IValue& key) {
  return key.isString() ? fmt::format("['{}']", key.toStringRef()) : fmt::format("[{}]", in_words(key));
}

// "input 1", then "input 1[0]".
std::string entry_text(const std::string& path, std::size_t entry) {
  return path.find_first_of(" [") == std::string::npos ? fmt::format("{} {}", path, entry)
                                                       : fmt::format("{}[{}]", path, entry);
}

bool same_bits(double a, double b) { return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b); }

std::string differs(const std::string& path, const std::string& captured, const c10::IValue& given) {
  return fmt::format("{}: captured {}, received {}", path, captured, in_words(given));
}

}  // namespace

// Bit for bit: a product with -0.0 has another sign, and NaN is as good a number to freeze as others.
bool same_constant(const c10::IValue& a, const c10::IValue& b) {
  if (a.tagKind() != b.tagKind()) return false;
  if (a.isDouble()) return same_bits(a.toDouble(), b.toDouble());
  if (!a.isComplexDouble()) return a == b;
  const auto x = a.toComplexDouble(), y = b.toComplexDouble();
  return same_bits(x.real(), y.real()) && same_bits(x.imag(), y.imag());
}

Structure::Structure(const c10::IValue& value, std::string name)
    : name_(std::move(name)), root_(read(value, leaves_)) {}

Structure::Node Structure::read(const c10::IValue& value, std::size_t& leaves) {
  if (is_none(value)) return {.kind = Kind::none};
  if (value.isTensor()) {
    ++leaves;
    return {.kind = Kind::tensor};
  }
  Node node{.kind = Kind::constant, .like = value};
  if (value.isList()) {
    node.kind = Kind::list;
    for (const c10::IValue& entry : value.toListRef()) node.children.push_back(read(entry, leaves));
    node.like = c10::IValue(c10::impl::GenericList(value.type()->expectRef<c10::ListType>().getElementType()));
  } else if (value.isTuple()) {
    node.kind = Kind::tuple;
    for (const c10::IValue& entry : value.toTupleRef().elements()) node.children.push_back(read(entry, leaves));
    node.like = {};
    auto type = value.type()->expect<c10::TupleType>();
    if (type->schema() != nullptr) node.tuple_type = std::move(type);
  } else if (value.isGenericDict()) {
    node.kind = Kind::dict;
    const auto dict = value.toGenericDict();
    for (const auto& entry : dict) {
      node.keys.push_back(entry.key());
      node.children.push_back(read(entry.value(), leaves));
    }
    node.like = c10::IValue(c10::impl::GenericDict(dict.keyType(), dict.valueType()));
  }
  return node;
}

std::optional<std::string> Structure::flatten(const c10::IValue& value, std::vector<at::Tensor>& tensors) const {
  return match(root_, value, name_, tensors);
}

std::optional<std::string> Structure::match(const Node& node, const c10::IValue& value, const std::string& path,
                                            std::vector<at::Tensor>& tensors) {
  const auto each = [&](const auto& entries) -> std::optional<std::string> {
    for (std::size_t i = 0; i < node.children.size(); ++i) {
      if (auto found = match(node.children[i], entries[i], entry_text(path, i), tensors)) return found;
    }
    return std::nullopt;
  };
  switch (node.kind) {
    case Kind::tensor:
      if (is_none(value) || !value.isTensor()) return differs(path, "a tensor", value);
      tensors.push_back(value.toTensor());
      return std::nullopt;
    case Kind::none:
      if (!is_none(value)) return differs(path, "None", value);
      return std::nullopt;
    case Kind::constant:
      if (!same_constant(value, node.like)) return differs(path, in_words(node.like), value);
      return std::nullopt;
    case Kind::list:
      if (!value.isList() || value.toListRef().size() != node.children.size()) {
        return differs(path, fmt::format("a list of {}", node.children.size()), value);
      }
      return each(value.toListRef());
    case Kind::tuple:
      if (!value.isTuple() || value.toTupleRef().elements().size() != node.children.size()) {
        return differs(path, fmt::format("a tuple of {}", node.children.size()), value);
      }
      return each(value.toTupleRef().elements());
    case Kind::dict:
      break;
  }
  if (!value.isGenericDict() || value.toGenericDict().size() != node.children.size()) {
    return differs(path, fmt::format("a map of {}", node.children.size()), value);
  }
  const auto dict = value.toGenericDict();
  for (std::size_t i = 0; i < node.keys.size(); ++i) {
    const std::string entry = path + key_text(node.keys[i]);
    const auto found = dict.find(node.keys[i]);
    if (found == dict.end()) return fmt::format("{}: captured, but missing now", entry);
    if (auto difference = match(node.children[i], found->value(), entry, tensors)) return difference;
  }
  return std::nullopt;
}

c10::IValue Structure::rebuild(std::span<const at::Tensor> tensors) const { return build(root_, tensors); }

c10::IValue Structure::build(const Node& node, std::span<const at::Tensor>& tensors) {
  switch (node.kind) {
    case Kind::tensor: {
      c10::IValue value(tensors.front());
      tensors = tensors.subspan(1);
      return value;
    }
    case Kind::none:
      return {};
    case Kind::constant:
      return node.like;
    case Kind::list: {
      auto list = node.like.toList().copy();
      for (const Node& child : node.children) list.push_back(build(child, tensors));
      return list;
    }
    case Kind::tuple: {
      std::vector<c10::IValue> entries;
      for (const Node& child : node.children) entries.push_back(build(child, tensors));
      if (node.tuple_type == nullptr) return c10::ivalue::Tuple::create(std::move(entries));
      return c10::ivalue::Tuple::createNamed(std::move(entries), node.tuple_type->cast<c10::TupleType>());
    }
    case Kind::dict:
      break;
  }
  auto dict = node.like.toGenericDict().copy();
  for (std::size_t i = 0; i < node.keys.size(); ++i) dict.insert(node.keys[i], build(node.children[i], tensors));
  return dict;
}

std::string Structure::name_of(std::size_t leaf) const {
  std::vector<std::string> all;
  names(root_, name_, all);
  return leaf < all.size() ? all[leaf] : fmt::format("{} {}", name_, leaf);
}

void Structure::names(const Node& node, const std::string& path, std::vector<std::string>& result) {
  if (node.kind == Kind::tensor) result.push_back(path);
  for (std::size_t i = 0; i < node.children.size(); ++i) {
    names(node.children[i], node.kind == Kind::dict ? path + key_text(node.keys[i]) : entry_text(path, i), result);
  }
}

}  // namespace pianola::callable
