#pragma once
#include <pianola/core/error.hpp>
#include <pianola/core/export.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace pianola::graph {

// Note [Reads that replays check]
// A step may ask for a value and go on as it says: `if mask.all()`, `if loss > 5`, x[mask]. Its graph holds the way that the capture
// took. Where the value mostly is the same, that is the right way mostly: so a replay runs the graph up to the read, reads, and goes
// on where the value says what it said to the capture. Else the replay ends with OtherValue, and whoever replays makes the call
// anew, eagerly. What the replay has done by then is taken back first (callable::Undo); a step that does what cannot be taken back
// before a read is not captured (callable::CheckedReads::obstacle).
//
// Who reads mostly asks for what was computed long before: for the loss, behind the optimizer. A replay reads as soon as the last
// operation is done that writes there. So there is less to take back, and the GPU computes the rest while the host goes on.

/// A replay read another value than the one that its capture went on with.
class PIANOLA_API OtherValue : public GuardError {
 public:
  using GuardError::GuardError;
  ~OtherValue() override;
};

/// Reads tensors, and says whether they are as the capture took them to be. Called by replays, on their thread.
using ReadCheck = std::function<bool(const std::vector<at::Tensor>& tensors)>;

/// Puts a check into the step that this thread records: an island (island.hpp), which the capture does not run.
/// @param what    Is read, for OtherValue.
/// @param behind  The operation of the step, counted from 1, behind which nothing writes the tensors until now.
PIANOLA_API void check_in_replays(std::vector<at::Tensor> tensors, ReadCheck check, std::string what,
                                  std::size_t behind);

inline constexpr const char* kReadCheck = "pianola::check_read";

/// Of a call of it: the operation that a replay makes it behind. Nothing: it is another operation.
[[nodiscard]] std::optional<std::size_t> place_of_check(const std::string& operation,
                                                        c10::ArrayRef<c10::IValue> inputs);

}  // namespace pianola::graph
