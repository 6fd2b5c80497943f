#pragma once
#include <pianola/audit/alignment.hpp>
#include <pianola/audit/observed_run.hpp>
#include <pianola/audit/report.hpp>
#include <pianola/core/source_place.hpp>

#include <c10/core/Device.h>

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pianola::auditing {

/// One operation of one run, by their indices.
struct OpAt {
  std::size_t run = 0;
  std::size_t op = 0;
};

/// Two runs that are compared, the earlier one first.
struct RunPair {
  std::size_t a = 0, b = 0;
  Alignment alignment;
};

/// All runs of a step, and what can be asked of them: what the checks look at.
class ObservedRuns {
 public:
  /// @param device     Where the graph is going to be.
  /// @param warmed_up  Whether the step ran before the first of them. Else what only the first does is not compared,
  ///                   where the others agree.
  ObservedRuns(std::vector<ObservedRun> runs, c10::Device device, bool warmed_up);

  [[nodiscard]] std::span<const ObservedRun> runs() const noexcept { return runs_; }
  [[nodiscard]] std::size_t size() const noexcept { return runs_.size(); }
  [[nodiscard]] const ObservedRun& run(std::size_t index) const { return runs_[index]; }
  [[nodiscard]] c10::Device device() const noexcept { return device_; }
  [[nodiscard]] bool on_cuda() const noexcept { return device_.is_cuda(); }
  /// Each run with the next one, and the first with all.
  [[nodiscard]] std::span<const RunPair> pairs() const noexcept { return pairs_; }

  [[nodiscard]] const OpRecord& op(OpAt at) const { return runs_[at.run].trace.ops()[at.op]; }
  [[nodiscard]] const OpNote& note(OpAt at) const { return runs_[at.run].notes[at.op]; }
  [[nodiscard]] std::span<const TensorRecord> inputs(OpAt at) const;
  [[nodiscard]] std::span<const TensorRecord> outputs(OpAt at) const;

  /// As the user called it: "aten::item".
  [[nodiscard]] std::string op_name(OpAt at) const;
  /// "encoder.layers.3", or the open user scopes; of a backward operation its forward one's.
  [[nodiscard]] std::string module(OpAt at) const;
  /// The user's line; of a backward operation its forward one's, or its own where the user wrote the backward. Slow.
  [[nodiscard]] SourcePlace place(OpAt at) const;
  /// The line that called it, in backward the one that started the backward pass. Slow.
  [[nodiscard]] SourcePlace own_place(OpAt at) const;
  /// Whether a frame of Python in a file that ends so, or one of C++ in a function that begins so, called it. Slow.
  [[nodiscard]] bool called_from(OpAt at, std::string_view python_file, std::string_view function) const;
  /// Whether an optimizer of torch's called it. Slow.
  [[nodiscard]] bool called_by_optimizer(OpAt at) const;
  /// Whether the user wrote the backward node that it belongs to: a torch.autograd.Function, a hook.
  [[nodiscard]] bool in_custom_backward(OpAt at) const;

  /// A finding at an operation: with its name, module, line and iteration, the rule's severity and fix.
  [[nodiscard]] Finding finding(std::string_view rule, OpAt at) const;

 private:
  struct Frames {
    std::vector<SourcePlace> script, native;
  };
  [[nodiscard]] const Frames& frames(OpAt at) const;

  std::vector<ObservedRun> runs_;
  c10::Device device_;
  std::vector<RunPair> pairs_;
  mutable std::map<std::pair<std::size_t, std::size_t>, SourcePlace> places_;
  mutable std::map<std::pair<std::size_t, std::size_t>, Frames> frames_;
};

/// Where most operations of the runs compute; the CPU where none does.
[[nodiscard]] c10::Device busiest_device(std::span<const ObservedRun> runs);

}  // namespace pianola::auditing
