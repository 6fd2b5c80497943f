#include <pianola/training/leaf_names.hpp>

#include <fmt/format.h>

#include <utility>

namespace pianola::training {

std::string microbatch_name(std::size_t microbatch) { return fmt::format("microbatch {}", microbatch); }

void LeafNames::add(std::size_t microbatch, std::string path) {
  leaves_.push_back({.microbatch = microbatch, .path = std::move(path)});
}

std::string LeafNames::operator[](std::size_t leaf) const {
  return microbatch_name(leaves_[leaf].microbatch) + leaves_[leaf].path;
}

bool LeafNames::is_called(std::size_t leaf, std::string_view name) const {
  const std::string& path = leaves_[leaf].path;
  if (path == name) return true;
  return !name.empty() && (path.ends_with(fmt::format("['{}']", name)) || path.ends_with(fmt::format(".{}", name)));
}

std::string LeafNames::listed(std::size_t microbatch) const {
  std::string text;
  for (const Leaf& leaf : leaves_) {
    if (leaf.microbatch != microbatch) continue;
    if (!text.empty()) text += ", ";
    text += leaf.path.empty() ? "one tensor, which is the microbatch" : leaf.path;
  }
  return text.empty() ? "no tensor" : text;
}

}  // namespace pianola::training
