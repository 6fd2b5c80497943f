#pragma once
#include <apps/demo/char_gpt.hpp>
#include <apps/demo/text.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace pianola::demo {

struct SamplingOptions {
  std::int64_t length = 320;  ///< Characters to write after the prompt.
  double temperature = 0.7;   ///< Below 1 the likely characters become likelier.
  std::uint64_t seed = 1;
};

/// Lets the model continue `prompt`, one character at a time; returns the prompt and what follows. Draws from a generator
/// of its own and leaves the default ones alone.
[[nodiscard]] std::string sample(const CharGpt& model, const Text& text, std::string_view prompt,
                                 const SamplingOptions& options);

}  // namespace pianola::demo
