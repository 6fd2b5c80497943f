#pragma once
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace pianola::callable {

struct HostPartCall;

/// A number among the arguments of a part's calls.
struct HostPartNumber {
  std::size_t call;  ///< Position among the calls of the part.
  std::size_t argument;
  c10::IValue value;
};

// Note [Shortcuts of parts]
// Python of AdamW takes half a millisecond for 32 parameters, nearly all of it to take lists apart. What it comes to is known: a
// count is one higher, and a few numbers follow from the count and the settings. A shortcut computes these itself. It learns which
// number goes where by looking at runs of the part, and stands in for it while all that decides what the part does is as it was.

/// Does what a part does on the host without running it.
class HostShortcut {
 public:
  HostShortcut() = default;
  HostShortcut(const HostShortcut&) = delete;
  HostShortcut& operator=(const HostShortcut&) = delete;
  virtual ~HostShortcut() = default;

  /// The part has run, and did as when it was captured: these are its calls, with the numbers that it gave.
  virtual void learn(std::span<const HostPartCall> calls) = 0;
  /// The numbers that it would give now; nothing where it may do something else, or these are not known: it has to be run.
  [[nodiscard]] virtual std::optional<std::vector<HostPartNumber>> numbers() = 0;
  /// What else it does on the host. Called once for numbers() that are used.
  virtual void finish() = 0;
};

}  // namespace pianola::callable
