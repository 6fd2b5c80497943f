#pragma once
#include <pianola/callable/call.hpp>
#include <pianola/callable/call_signature.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace pianola::callable {

/// Sees whether signatures come back. Where nearly each call has one of its own, none is ever captured, and nothing else
/// would tell.
class Newcomers {
 public:
  /// After a call whose signature was known.
  void note_known() noexcept {
    if (strange_ > 0) --strange_;
  }
  /// After one whose was not. @param before  That of the call before; nullptr: it was the first.
  void note_new(const CallSignature* before, const CallSignature& now, const Call& call);

  /// What to tell the caller; once.
  [[nodiscard]] std::optional<std::string> take_note();

 private:
  int strange_ = 0;
  bool told_ = false;
  std::optional<std::string> note_;
};

}  // namespace pianola::callable
