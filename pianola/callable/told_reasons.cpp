#include <pianola/callable/told_reasons.hpp>

#include <cstddef>

namespace pianola::callable {
namespace {

// Shapes that never come back, each with its text, must not pile up.
constexpr std::size_t kMostReasons = 256;

}  // namespace

std::optional<std::string> ToldReasons::once(std::optional<std::string> reason) {
  if (!reason) return std::nullopt;
  if (told_.size() == kMostReasons) told_.clear();
  return told_.insert(*reason).second ? reason : std::nullopt;
}

}  // namespace pianola::callable
