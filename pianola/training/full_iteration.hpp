#pragma once
#include <pianola/core/export.hpp>
#include <pianola/training/full_iteration_info.hpp>
#include <pianola/training/full_iteration_options.hpp>

#include <ATen/core/ivalue.h>

#include <functional>
#include <memory>
#include <vector>

namespace pianola {

class StaticInputs;

/// A whole training iteration as one graph: forward and backward over all microbatches, clipping, scaler, optimizer.
///
///     pianola::AdamW optimizer(model->parameters(), {.lr = 3e-4});
///     pianola::FullIteration iteration([&](const std::vector<c10::IValue>& microbatches) -> c10::IValue {
///       optimizer.zero_grad();
///       at::Tensor total = at::zeros({}, device);
///       for (const c10::IValue& batch : microbatches) {
///         at::Tensor loss = loss_of(model, batch) / microbatches.size();
///         loss.backward();
///         total += loss.detach();
///       }
///       pianola::clip_grad_norm_(optimizer, 1.0);
///       optimizer.step();
///       return total;
///     });
///     c10::IValue loss = iteration(microbatches);   // eager, eager, eager, captured, replayed ...
///
/// The first FullIterationOptions::warmup calls of a signature are eager iterations, for real; the next one is captured
/// and replayed, and later ones are replayed. A signature is the number of microbatches, their structure, and the shapes,
/// strides and dtypes of their tensors; other values in them (numbers, strings) belong to it, and are frozen. Numbers of
/// the host that the step uses are frozen as well: keep what changes (learning rate, scale) on the device, as Pianola's
/// optimizers and GradScaler do, or call one of torch's optimizers by pianola::step(); a number that changes between
/// warm-up iterations is refused.
///
/// Results are equal to eager's, bit for bit. They are static tensors (FullIterationOptions::output) without history.
/// Gradients that the step leaves in `.grad` are static too, for an optimizer outside.
///
/// A replay reads microbatches wherever they are, through copies that are part of the graph; given StaticInputs, it reads
/// those, and copies nothing.
///
/// Destroy it, and whatever it captured, in any order. Inside a capture its calls run eagerly and become part of that.
///
/// Threads:  One call at a time.
/// Streams:  The current one. Nothing synchronizes, but a capture may; see Graph::capture.
class PIANOLA_API FullIteration {
 public:
  /// Losses and metrics of one iteration, from its microbatches: tensors, nested in lists, tuples and maps as one likes.
  using Step = std::function<c10::IValue(const std::vector<c10::IValue>& microbatches)>;

  /// @throws UsageError  An option is out of range.
  explicit FullIteration(Step training, FullIterationOptions options = {});
  /// With a validation step of its own.
  FullIteration(Step training, Step validation, FullIterationOptions options = {});
  FullIteration(FullIteration&&) noexcept;
  FullIteration& operator=(FullIteration&&) noexcept;
  ~FullIteration();

  /// @throws CaptureError, UsageError  The step cannot be captured, and FullIterationOptions::eager_fallback is off;
  ///                                   nothing was computed.
  /// @throws UsageError                There is no step for this stage.
  /// Whatever the step throws reaches the caller unchanged.
  c10::IValue operator()(const std::vector<c10::IValue>& microbatches, Stage stage = Stage::training);
  /// With the batch that StaticInputs::advance() made the current one. Where it has buckets, all of them are captured
  /// when the first one is due, the largest first, so that smaller ones need no memory of their own.
  /// @throws UsageError  As above, and where there are more buckets than FullIterationOptions::capacity.
  c10::IValue operator()(StaticInputs& inputs, Stage stage = Stage::training);

  /// Forgets the stage's signatures and drops their graphs: the next calls warm up again.
  void reset(Stage stage);
  /// Of both stages.
  void reset();

  [[nodiscard]] FullIterationInfo info() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pianola
