#pragma once
#include <pianola/core/export.hpp>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pianola {

/// What a schedule needs to know besides the order of its steps.
struct ScheduleOptions {
  std::vector<int> layers_per_chunk = {};  ///< Empty: one layer per chunk; one number: for all; else one per chunk.
};

/// The pipeline of which a schedule is one rank's part.
struct PipelineShape {
  int pipeline_size = 1;  ///< Ranks of the pipeline.
  int virtual_size = 1;   ///< Model chunks on each rank; more than one for Schedule::interleaved alone.
  int microbatches = 1;   ///< Microbatches of one training step.
  int rank = 0;           ///< Which rank's part, counted from 0. Rank 0 has the model's first chunk.
};

enum class Direction { forward, backward, weight_gradients };

/// One step of a schedule: the forward or the backward of one microbatch through one chunk, or the gradients of weights
/// that its backward has left for later. Chunks and microbatches count from 1.
struct ScheduleStep {
  Direction direction = Direction::forward;
  int chunk = 1;
  int microbatch = 1;

  friend bool operator==(const ScheduleStep&, const ScheduleStep&) = default;
};

/// "forward of chunk 2, microbatch 1"
[[nodiscard]] PIANOLA_API std::string describe(const ScheduleStep& step);

/// The order in which one rank of a pipeline runs the forwards and backwards of its model chunks.
///
/// It is written as Transformer Engine's `_order`: `c` is the forward of the next microbatch of chunk c, counted from
/// 1, and `-c` the backward of the oldest microbatch of chunk c that is in flight, which is one between its forward and
/// its backward. `-c-0.5` are the gradients of the weights of chunk c, for the oldest microbatch whose backward has left
/// them; that backward then computes those of the chunk's input alone (see CallableOptions::delay_weight_gradients).
/// A schedule that exists is a valid one: each microbatch goes forward and then backward through each chunk, and all
/// microbatches of a chunk delay the gradients of its weights, or none. In which order a microbatch visits the chunks is not checked: they depend on each other through other ranks.
///
///     Schedule order = Schedule::parse("1,2,1,2,-2,-1,-2,-1", {.layers_per_chunk = {2, 1}});
///     order.steps()[4];  // backward of chunk 2, microbatch 1
///     order.depth(1);    // 2 microbatches in flight
///
/// Threads:  A value: const calls are safe from several threads at once.
/// Source:   Follows transformer_engine.pytorch.make_graphed_callables, which checks counts alone.
class PIANOLA_API Schedule {
 public:
  /// A schedule without steps: empty().
  Schedule() = default;

  /// Reads an order such as "1,2,1,2,-2,-1,-2,-1". Blanks may stand around the entries, `[` and `]` around the whole.
  ///
  /// @throws ScheduleError  An entry is not a number; otherwise as from_order().
  [[nodiscard]] static Schedule parse(std::string_view text, const ScheduleOptions& options = {});

  /// Takes an order as Transformer Engine's `_order` holds it.
  ///
  /// @throws ScheduleError  The order is empty; an entry is 0 or neither a whole number nor -c-0.5; chunks are left out;
  ///                        a backward comes before its forward or is missing, or delayed weight gradients before their
  ///                        backward; the chunks' microbatches differ in number; or `layers_per_chunk` does not fit.
  ///                        Names the entry, counted from 1.
  [[nodiscard]] static Schedule from_order(std::span<const double> order, const ScheduleOptions& options = {});

  /// GPipe: the forwards of all microbatches, then their backwards.
  ///
  /// @throws ConfigError    A size is not positive, the rank is not one of the pipeline's, or `virtual_size` is not 1.
  /// @throws ScheduleError  `layers_per_chunk` does not fit.
  [[nodiscard]] static Schedule gpipe(const PipelineShape& shape, const ScheduleOptions& options = {});

  /// 1F1B: as many forwards as ranks follow, then forward and backward in turn, then the remaining backwards.
  ///
  /// @throws ConfigError, ScheduleError  As gpipe().
  /// Source:  Megatron-LM, megatron/core/pipeline_parallel/schedules.py, get_pp_rank_microbatches.
  [[nodiscard]] static Schedule one_f_one_b(const PipelineShape& shape, const ScheduleOptions& options = {});

  /// Interleaved 1F1B: each rank has several chunks and runs each for `pipeline_size` microbatches at a time. With one
  /// chunk per rank it is one_f_one_b().
  ///
  /// @throws ConfigError    A size is not positive; the rank is not one of the pipeline's; there are several chunks but
  ///                        one rank; or `microbatches` is not a multiple of `pipeline_size`.
  /// @throws ScheduleError  `layers_per_chunk` does not fit.
  /// Source:  As one_f_one_b(), with microbatch_group_size_per_vp_stage at its default, the pipeline's size, and the
  ///          order that Megatron-LM's convert_schedule_table_to_order gives to Transformer Engine.
  [[nodiscard]] static Schedule interleaved(const PipelineShape& shape, const ScheduleOptions& options = {});

  [[nodiscard]] bool empty() const noexcept { return steps_.empty(); }
  /// Valid while the schedule lives and is not assigned to.
  [[nodiscard]] std::span<const ScheduleStep> steps() const& noexcept { return steps_; }
  std::span<const ScheduleStep> steps() const&& = delete;
  [[nodiscard]] int chunks() const noexcept { return static_cast<int>(chunks_.size()); }
  /// Microbatches that go through each chunk.
  [[nodiscard]] int microbatches() const noexcept;

  /// @throws UsageError  There is no such chunk; also by first_layer() and depth().
  [[nodiscard]] int layers(int chunk) const;
  [[nodiscard]] int total_layers() const noexcept;
  /// The chunk's first layer, counted from 0 through the chunks in order.
  [[nodiscard]] int first_layer(int chunk) const;
  /// The largest number of microbatches of the chunk that are in flight at once: from the forward to the backward, or to
  /// the delayed gradients of weights.
  [[nodiscard]] int depth(int chunk) const;
  /// Whether the chunk's backwards leave the gradients of weights for later.
  [[nodiscard]] bool delays_weight_gradients(int chunk) const;

  /// "1,2,1,2,-2,-1,-2,-1": the order, which parse() reads again.
  [[nodiscard]] std::string to_string() const;

  friend bool operator==(const Schedule&, const Schedule&) = default;

 private:
  struct Chunk {
    int layers = 1;
    int first_layer = 0;
    int depth = 0;
    bool delays = false;

    friend bool operator==(const Chunk&, const Chunk&) = default;
  };

  Schedule(std::span<const double> order, const ScheduleOptions& options);
  [[nodiscard]] const Chunk& at(int chunk) const;
  void count_layers(const std::vector<int>& layers);

  std::vector<ScheduleStep> steps_;
  std::vector<Chunk> chunks_;
};

}  // namespace pianola
