#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace pianola::fuzz {

/// Random numbers that are the same on every machine (SplitMix64).
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) noexcept : state_(seed) {}
  std::uint64_t next() noexcept;
  /// Below `bound`, which is at least 1.
  std::size_t below(std::size_t bound) noexcept { return static_cast<std::size_t>(next() % bound); }

 private:
  std::uint64_t state_;
};

/// Makes damaged and hostile inputs out of good ones: bits flipped, parts cut out, doubled, or replaced by parts of another
/// input, and numbers, as text and as bytes, replaced by the least and the largest that types hold and by their neighbours.
class Mutator {
 public:
  /// @param seeds  At least one.
  explicit Mutator(std::vector<std::string> seeds) : seeds_(std::move(seeds)) {}

  /// Input number `number` of those that belong to `seed`; always the same one.
  [[nodiscard]] std::string input(std::uint64_t seed, std::uint64_t number) const;

 private:
  std::vector<std::string> seeds_;
};

}  // namespace pianola::fuzz
