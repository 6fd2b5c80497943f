#pragma once
#include <pianola/core/error.hpp>
#include <pianola/trace/call_site.hpp>
#include <pianola/trace/plain_check.hpp>

#include <optional>
#include <string>

namespace pianola::trace {

/// The first thing in a step that no graph can hold; see Note [What is plain].
struct OddWork {
  Oddity oddity = Oddity::none;
  std::string what;      ///< "aten::mm is given a DTensor, which runs Python for each operation"
  std::string op;        ///< As the user called it; "" where it is no operator.
  std::string scope;     ///< Open user scopes, joined by '/'.
  std::string backward;  ///< The autograd node, in backward.
  CallSite site;

  [[nodiscard]] Diagnosis diagnosis() const;
};

/// The first odd work of a run, and the first that the graph of a whole step may hold nevertheless. Of several threads: by a lock of
/// the caller's.
class FirstOddWork {
 public:
  /// Whether it is the first of its kind, or says more than the first. What a call does that makes code is no example of later calls;
  /// newer versions of torch ask for compiled code after they have compiled it, under a mode.
  [[nodiscard]] bool is_news(Oddity oddity) const noexcept;
  /// Keeps it where it is news.
  void note(const OddWork& work);

  /// What no graph can hold.
  [[nodiscard]] const std::optional<OddWork>& odd_work() const noexcept { return odd_work_; }
  /// What that of a whole step can.
  [[nodiscard]] const std::optional<OddWork>& communication() const noexcept { return communication_; }

 private:
  std::optional<OddWork> odd_work_, communication_;
};

}  // namespace pianola::trace
