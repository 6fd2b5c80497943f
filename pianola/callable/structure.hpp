#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pianola::callable {

/// The shape of a nested value: lists, tuples and maps around tensors, None and constants (numbers, strings). Values of
/// one structure differ in their tensors only.
class Structure {
 public:
  /// @param name  What messages call the value: "input", "output".
  Structure(const c10::IValue& value, std::string name);

  /// The number of tensors; None is not one.
  [[nodiscard]] std::size_t leaves() const noexcept { return leaves_; }
  /// "input 0['mask'][1]".
  [[nodiscard]] std::string name_of(std::size_t leaf) const;

  /// The tensors of `value`, in order, into `tensors`; or the first difference from this structure, in words.
  [[nodiscard]] std::optional<std::string> flatten(const c10::IValue& value, std::vector<at::Tensor>& tensors) const;
  /// A value of this structure around `tensors`, one per leaf.
  [[nodiscard]] c10::IValue rebuild(std::span<const at::Tensor> tensors) const;

 private:
  enum class Kind { tensor, none, constant, list, tuple, dict };
  struct Node {
    Kind kind;
    c10::IValue like = {};            // constants: the value; lists and maps: an empty one of the same type
    c10::TypePtr tuple_type = {};     // named tuples
    std::vector<Node> children = {};  // maps: in the order of `keys`
    std::vector<c10::IValue> keys = {};
  };

  static Node read(const c10::IValue& value, std::size_t& leaves);
  static std::optional<std::string> match(const Node& node, const c10::IValue& value, const std::string& path,
                                          std::vector<at::Tensor>& tensors);
  static c10::IValue build(const Node& node, std::span<const at::Tensor>& tensors);
  static void names(const Node& node, const std::string& path, std::vector<std::string>& result);

  std::string name_;
  std::size_t leaves_ = 0;
  Node root_;
};

/// Whether two values that are no tensors are the same, numbers bit by bit.
[[nodiscard]] bool same_constant(const c10::IValue& a, const c10::IValue& b);

}  // namespace pianola::callable
