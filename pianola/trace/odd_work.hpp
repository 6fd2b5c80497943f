#pragma once
#include <pianola/core/error.hpp>
#include <pianola/trace/call_site.hpp>
#include <pianola/trace/plain_check.hpp>

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

}  // namespace pianola::trace
