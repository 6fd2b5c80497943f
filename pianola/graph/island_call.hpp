#pragma once
#include <pianola/graph/island.hpp>
#include <pianola/graph/leaf_uses.hpp>
#include <pianola/graph/surroundings.hpp>
#include <pianola/trace/weak_tensor.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/custom_class.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pianola::graph {

inline constexpr const char* kIslandBackward = "pianola::island_backward";

struct OpenHere;

/// While the function of an island runs: what it calls is part of it.
class RunningIsland {
 public:
  RunningIsland();
  RunningIsland(const RunningIsland&) = delete;
  RunningIsland& operator=(const RunningIsland&) = delete;
  ~RunningIsland();

 private:
  OpenHere& step_;
  Islands* outer_;
};

[[noreturn]] void refuse_island(const IslandFunction& function, const std::string& what, std::string fix);

/// An island that was found does in a run that is observed what no replay could do.
class UnfitIsland final : public std::exception {
 public:
  explicit UnfitIsland(std::string why) : why_(std::move(why)) {}
  [[nodiscard]] const char* what() const noexcept override { return why_.c_str(); }

 private:
  std::string why_;
};

/// One call of a function, in one run of a step and in the replays of its graph.
class Island final : public torch::CustomClassHolder {
 public:
  Island(IslandFunction function, const std::vector<at::Tensor>& inputs, std::optional<IslandNotes> expected);

  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& inputs, const IslandNumbers& numbers);
  /// @param of    The result that each gradient is of.
  /// @param keep  It may come again.
  std::vector<at::Tensor> backward(const std::vector<at::Tensor>& gradients, const std::vector<std::int64_t>& of,
                                   bool keep);
  /// The results as the step gets them, a node of autograd behind them.
  std::vector<at::Tensor> connect(std::vector<at::Tensor> results, const std::vector<at::Tensor>& inputs);

  [[nodiscard]] const IslandNotes& notes() const noexcept { return expected_ ? *expected_ : notes_; }
  /// At the end of a run that was observed. @throws UsageError  It is no example for a replay.
  void check_run() const {
    if (expected_) return;
    check_own_gradients();
    check_copies();
  }
  /// Those of the step that is recorded, as they are now.
  void know_leaves(const std::vector<trace::WeakTensor>& leaves);
  void note_unfit(std::string why) { notes_.unfit = std::move(why); }
  [[nodiscard]] const IslandFunction& function() const noexcept { return function_; }
  /// For each of its gradients whether there is one.
  [[nodiscard]] std::vector<bool> gradients_defined() const {
    std::vector<bool> defined;
    for (const auto& gradient : notes().gradients) defined.push_back(gradient.has_value());
    return defined;
  }

 private:
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs, const IslandNumbers& numbers);
  [[nodiscard]] IslandResult call(const IslandNumbers& numbers) const;
  void forget() {
    results_.clear();
    leaves_.clear();
    if (expected_) given_.clear();
  }
  void find_uses(const std::vector<at::Tensor>& given, std::uint64_t began);
  void number_uses(const std::vector<LeafUse>& uses, const std::vector<at::Tensor>& given);
  void check_results(const std::vector<at::Tensor>& results) const;
  struct Gradient {
    const void* tensor = nullptr;
    std::int64_t writes = 0;
    friend bool operator==(const Gradient&, const Gradient&) = default;
  };
  struct StepLeaf {
    trace::WeakTensor leaf;
    bool has_gradient;  // in the recording, where the function is called
    Gradient noted;     // before the function runs
  };
  [[nodiscard]] static Gradient gradient_now(const StepLeaf& of);
  void note_gradients();
  [[nodiscard]] bool gradients_are_as_noted() const;
  void check_own_gradients() const;
  std::vector<at::Tensor> handed_out(const std::vector<at::Tensor>& inputs);
  void check_copies() const;
  [[noreturn]] void refuse(const std::string& what, std::string fix) const;
  [[noreturn]] void refuse_other_gradients() const;

  IslandFunction function_;
  std::vector<bool> takes_gradient_;  // for each input
  c10::Device device_;
  Surroundings surroundings_;
  std::optional<IslandNotes> expected_;  // of the run before: in a recording, and in replays
  IslandNotes notes_;                    // of this run, where it is observed
  // From forward to backward of a run:
  std::vector<at::Tensor> leaves_;
  std::vector<at::Tensor> results_;
  std::vector<at::Tensor> given_;  // as the function has them
  // What the function may save in replays: between its two operations nothing else may be captured into that memory.
  std::vector<at::Tensor> recorded_inputs_;
  struct Copy {
    at::Tensor argument, copy;
    std::array<std::int64_t, 2> versions;
  };
  std::vector<Copy> copies_;                   // of arguments that it returned, where the run is observed
  std::vector<trace::WeakTensor> own_leaves_;  // for each input; expired: it is none
  std::vector<StepLeaf> step_leaves_;          // whose gradients the graph uses
};

}  // namespace pianola::graph
