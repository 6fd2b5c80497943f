#include <pianola/callable/newcomers.hpp>

#include <fmt/format.h>

#include <utility>

namespace pianola::callable {
namespace {

constexpr int kManyStrange = 8;

// Empty where it is neither a tensor nor an argument: somebody else tells then.
std::string what_changes(const CallSignature& before, const CallSignature& now, const Call& call) {
  if (before.text() != now.text()) {
    return fmt::format("the tensors change at every call, from {} to {}: pad them to a few sizes", before.text(),
                       now.text());
  }
  const std::string value = call.changed_since(before.key());
  return value.empty() ? value : value + " changes at every call: keep a number that changes in a tensor";
}

}  // namespace

void Newcomers::note_new(const CallSignature* before, const CallSignature& now, const Call& call) {
  if (before == nullptr || told_) return;
  const std::string change = what_changes(*before, now, call);
  if (change.empty() || ++strange_ < kManyStrange) return;
  told_ = true;
  note_ = fmt::format("nothing is captured, since nearly each of the last {} calls had a signature of its own; {}",
                      kManyStrange, change);
}

std::optional<std::string> Newcomers::take_note() { return std::exchange(note_, std::nullopt); }

}  // namespace pianola::callable
