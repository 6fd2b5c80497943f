#pragma once
#include <pianola/core/export.hpp>

namespace pianola::trace {

/// While it lives, this thread reads a value that its step may only return: after a replay the read can be made anew, from
/// what the graph leaves. Who made the scope knows by the end of the run whether the step did no more with it.
class PIANOLA_API LateRead {
 public:
  LateRead() noexcept;
  LateRead(const LateRead&) = delete;
  LateRead& operator=(const LateRead&) = delete;
  ~LateRead();

  [[nodiscard]] static bool is_open() noexcept;
};

}  // namespace pianola::trace
