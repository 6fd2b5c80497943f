#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace pianola::training {

/// What messages call the tensors of a batch, and to which microbatch each belongs.
class LeafNames {
 public:
  /// @param path  Within the microbatch: "['tokens'][0]"; empty where the microbatch is the tensor.
  void add(std::size_t microbatch, std::string path);

  [[nodiscard]] std::size_t size() const noexcept { return leaves_.size(); }
  [[nodiscard]] std::size_t microbatch_of(std::size_t leaf) const { return leaves_[leaf].microbatch; }
  /// "microbatch 2['tokens'][0]".
  [[nodiscard]] std::string operator[](std::size_t leaf) const;
  /// Without the microbatch.
  [[nodiscard]] const std::string& path_of(std::size_t leaf) const { return leaves_[leaf].path; }
  /// Whether that is its whole path, or its last key or field.
  [[nodiscard]] bool is_called(std::size_t leaf, std::string_view name) const;
  /// The paths of one microbatch, for a message: "['tokens'], ['targets']".
  [[nodiscard]] std::string listed(std::size_t microbatch) const;

 private:
  struct Leaf {
    std::size_t microbatch;
    std::string path;
  };
  std::vector<Leaf> leaves_;
};

/// "microbatch 2".
[[nodiscard]] std::string microbatch_name(std::size_t microbatch);

}  // namespace pianola::training
