#pragma once
#include <pianola/core/export.hpp>

#include <vector>

namespace pianola::trace {

/// While it lives, what this thread calls was given numbers that whoever made the scope follows: these, by his own count.
class PIANOLA_API NumberSpan {
 public:
  explicit NumberSpan(std::vector<int> sources);
  NumberSpan(const NumberSpan&) = delete;
  NumberSpan& operator=(const NumberSpan&) = delete;
  ~NumberSpan();

  /// Those of the innermost one; nullptr: none is open.
  [[nodiscard]] static const std::vector<int>* open() noexcept;

 private:
  std::vector<int> sources_;
  const std::vector<int>* outer_;
};

}  // namespace pianola::trace
