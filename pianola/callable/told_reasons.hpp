#pragma once
#include <optional>
#include <string>
#include <unordered_set>

namespace pianola::callable {

/// The reasons that the caller was told. A function that finds something else at each call is in as many states, which stay
/// eager for one reason.
class ToldReasons {
 public:
  /// @return  The reason, unless it was told before.
  [[nodiscard]] std::optional<std::string> once(std::optional<std::string> reason);
  /// They may be told again.
  void forget() noexcept { told_.clear(); }

 private:
  std::unordered_set<std::string> told_;
};

}  // namespace pianola::callable
