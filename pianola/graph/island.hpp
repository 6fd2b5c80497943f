#pragma once
#include <pianola/core/export.hpp>
#include <pianola/trace/weak_tensor.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pianola::graph {

// Note [Islands]
// A part of a step that has to run on the host (it reads values, logs, calls what cannot be captured) is an island: one operation of
// the step, pianola::island, whose kernel calls the function. While a step runs eagerly and is observed, the function runs, and
// what it does is shown to nobody. A capture does not run it: it takes the results for what they were in the run before, in shape
// and type. A replay runs the graph's operations before it, the function, and the graph's operations behind it, as it does with
// any operation that has to be run by hand.
//
// Backward, an island is one node of autograd, whose operation is pianola::island_backward: it differentiates what the function
// did in this run. Parameters that the function uses are found in its history, and are the node's like its inputs: so the graph
// adds up their gradients, and nobody else.
//
// Where nobody marked the function (it was found to read what changes), nobody promised that it gives the same tensors each time
// either. A replay that meets others ends with OtherValue, as at a check of a read (read_check.hpp): its call is taken back, and
// made eagerly.
//
// A tensor that the function uses several times gets a gradient from each use, and autograd adds them up one by one, to those from
// outside. So does the node: it has an edge for each use, in the order in which autograd comes to them, and the sum has the same
// bits as without an island.

/// What the function of an island is given besides tensors: integers and floats, which a replay may give it anew.
using IslandNumbers = std::vector<c10::IValue>;
inline constexpr std::size_t kMostIslandNumbers = 8;

/// What it returns.
struct IslandResult {
  std::vector<at::Tensor> tensors = {};
  /// What the caller makes of them; in a recording that of the run before.
  std::shared_ptr<void> structure = {};
  /// Of one that was found, in a run that is observed: it did what no replay could do. To be called again, as no island.
  bool is_unfit = false;
};

/// The function of an island.
struct IslandFunction {
  /// Called with autograd and autocast as they were where the step called it.
  using Run = std::function<IslandResult(const std::vector<at::Tensor>& inputs, const IslandNumbers& numbers)>;
  Run run;
  std::string name;       ///< For messages.
  std::int64_t number;    ///< The same for the same function in each run of the step.
  bool is_found = false;  ///< It was not marked by the user; it leaves nothing behind but its results.
};

/// A tensor's description; on the CPU, where a recording computes with it, with values.
struct IslandSample {
  at::Tensor like;
  c10::Device device;
  bool requires_grad = false;
};

/// What a run noted of one island.
struct IslandNotes {
  std::int64_t function = 0;
  std::vector<IslandSample> results = {};
  bool is_found = false;
  std::string unfit = {};  ///< Where it was found: why no replay would be right.
  std::shared_ptr<void> structure = {};
  std::vector<trace::WeakTensor> parameters = {};  ///< Leaves that it used, and was not given.
  std::vector<std::size_t> uses = {};  ///< Of inputs, and behind them of parameters: which, for each gradient.
  std::vector<std::optional<IslandSample>> gradients = {};  ///< Of each use.
};

class Island;

/// The islands of one run of a step, on the thread that runs it, and on those of autograd's that run its backward passes.
class PIANOLA_API Islands {
 public:
  Islands();
  /// Of a recording. @param expected  Of the run before.
  /// @param leaves  Whose gradients the step uses.
  explicit Islands(std::vector<IslandNotes> expected, const std::vector<at::Tensor>& leaves = {});
  Islands(const Islands&) = delete;
  Islands& operator=(const Islands&) = delete;
  ~Islands();

  /// While it lives, call_island() finds them.
  class Open {
   public:
    explicit Open(Islands& islands);
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;
    ~Open();

   private:
    Islands* outer_;
    bool is_outermost_;
  };
  [[nodiscard]] static Islands* current() noexcept;
  /// Whether the function of one runs in the step that this thread works for.
  [[nodiscard]] static bool is_running() noexcept;
  /// Whether that step is recorded.
  [[nodiscard]] static bool step_is_recorded() noexcept;

  /// Of the run as far as it has come. @throws UsageError  It shows that no replay would be right, of an island that was marked.
  [[nodiscard]] std::vector<IslandNotes> notes() const;
  /// Where a part of a step is captured, whose backward pass is another graph.
  /// @throws UsageError  The function of an island uses parameters, whose gradients nobody would add up.
  void check_no_parameters() const;

 private:
  friend PIANOLA_API IslandResult call_island(IslandFunction function, std::vector<at::Tensor> inputs,
                                              IslandNumbers numbers);
  c10::intrusive_ptr<Island> add(IslandFunction function, const std::vector<at::Tensor>& inputs);

  std::vector<IslandNotes> expected_;
  std::vector<trace::WeakTensor> leaves_;
  std::vector<c10::intrusive_ptr<Island>> islands_;
};

/// Calls a function as an island of the step that is observed or recorded on this thread; as it is where none is.
/// @param numbers  At most kMostIslandNumbers.
/// @throws UsageError  It writes an argument in place, or uses tensors with history that it was not given. In a replay: it returns
///                     other tensors than expected, or gives other gradients; what ran before it has run then.
/// @throws CaptureError  A recording comes by it that has no run before, or another one.
PIANOLA_API IslandResult call_island(IslandFunction function, std::vector<at::Tensor> inputs, IslandNumbers numbers);

/// For IslandFunction::number.
[[nodiscard]] PIANOLA_API std::int64_t next_island_number() noexcept;

/// Whether an operation is an island, its backward, or a check of a read: a replay runs it by hand.
[[nodiscard]] bool is_island(const std::string& operation) noexcept;
/// Whether an operation is an island that was found, or its backward.
[[nodiscard]] bool is_found_island(const std::string& operation, c10::ArrayRef<c10::IValue> inputs);
/// The leaves that an island used in the run before without being given them; none of other operations.
[[nodiscard]] std::vector<at::Tensor> own_leaves_of_island(const std::string& operation,
                                                           c10::ArrayRef<c10::IValue> inputs);

}  // namespace pianola::graph
