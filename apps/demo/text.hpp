#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace pianola::demo {

/// A text as a sequence of small numbers: each distinct byte has one, in the order of the bytes.
class Text {
 public:
  /// @throws pianola::UsageError  The text is empty.
  explicit Text(std::string bytes);
  /// @throws pianola::UsageError  The file cannot be read, or is empty.
  static Text read(const std::filesystem::path& file);

  [[nodiscard]] std::int64_t size() const noexcept { return static_cast<std::int64_t>(bytes_.size()); }
  [[nodiscard]] std::int64_t vocabulary() const noexcept { return static_cast<std::int64_t>(symbols_.size()); }
  /// All of it: int64, on the CPU.
  [[nodiscard]] const at::Tensor& tokens() const noexcept { return tokens_; }
  /// The numbers of `bytes`, leaving out those bytes that the text does not have.
  [[nodiscard]] std::vector<std::int64_t> encode(std::string_view bytes) const;
  [[nodiscard]] char symbol(std::int64_t token) const { return symbols_.at(static_cast<std::size_t>(token)); }

 private:
  std::string bytes_;
  std::string symbols_;
  at::Tensor tokens_;
};

/// The first readable of a few texts that are worth learning: the licences that every Debian carries, else ./README.md.
/// @throws pianola::UsageError  There is none.
[[nodiscard]] std::filesystem::path default_text();

/// Endless random pieces of a text and, as targets, the same pieces one character later. Equal seeds give equal pieces.
class BatchStream {
 public:
  struct Batch {
    at::Tensor inputs;   ///< int64 [batch, context], on the CPU.
    at::Tensor targets;  ///< Likewise.
  };

  /// @throws pianola::UsageError  The text is shorter than two pieces.
  BatchStream(const Text& text, std::int64_t batch, std::int64_t context, std::uint64_t seed);

  [[nodiscard]] Batch next();

 private:
  at::Tensor tokens_;
  std::int64_t batch_;
  std::int64_t context_;
  std::mt19937_64 random_;
};

}  // namespace pianola::demo
