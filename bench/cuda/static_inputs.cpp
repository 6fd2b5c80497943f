#include "benchmark.hpp"
#include "cuda/device.hpp"
#include "models/mlp.hpp"
#include "models/model.hpp"

#include <pianola/graph/graph.hpp>
#include <pianola/training/static_inputs.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace pianola::bench::cuda {
namespace {

constexpr std::int64_t kRows = 16'384, kColumns = 1024;  // 64 MiB of float32
constexpr std::int64_t kWidth = 4096;
constexpr int kProducts = 5;

constexpr const char* kAlone = "replay alone";
constexpr const char* kInFront = "copy_ in front of the replay";
constexpr const char* kLoaded = "StaticInputs::load(), replay";

// A step that reads a batch, and keeps the device busy for longer than a batch travels.
class Consumer {
 public:
  void capture(const at::Tensor& batch) {
    graph_.capture([&] {
      const at::NoGradGuard no_grad;
      sum_ = at::sum(batch.select(1, 0));
      for (int i = 0; i < kProducts; ++i) product_ = at::mm(left_, right_);
    });
  }
  void replay() { graph_.replay(); }
  [[nodiscard]] const at::Tensor& sum() const { return sum_; }

 private:
  at::Tensor left_ = fixed_batch({kWidth, kWidth}, kDevice);
  at::Tensor right_ = fixed_batch({kWidth, kWidth}, kDevice);
  at::Tensor sum_;
  at::Tensor product_;
  Graph graph_{kDevice};
};

// Batches of the host that are given in turn.
class Batches {
 public:
  explicit Batches(bool pinned) {
    for (std::size_t i = 0; i < batches_.size(); ++i) {
      batches_[i] =
          at::full({kRows, kColumns}, static_cast<double>(i + 1), at::TensorOptions(at::kFloat).pinned_memory(pinned));
    }
  }
  const at::Tensor& next() { return batches_[++turn_ % batches_.size()]; }
  /// What Consumer makes of the batch that next() gave last.
  [[nodiscard]] double expected_sum() const { return static_cast<double>(kRows) * (turn_ % batches_.size() + 1); }

 private:
  std::array<at::Tensor, 3> batches_;
  std::size_t turn_ = 0;
};

void check_sum(const char* what, const Consumer& consumer, const Batches& batches) {
  check_equal(what, {consumer.sum()}, {at::full({}, batches.expected_sum(), consumer.sum().options())});
}

Requirement hidden(const Case& measured, double least) {
  const double alone = measured.median_of(kAlone);
  const double share = 1 - (measured.median_of(kLoaded) - alone) / (measured.median_of(kInFront) - alone);
  return {.text = fmt::format("{}: hides at least {:g} % of the time that {} adds to {}, in percent", kLoaded,
                              least * 100, kInFront, kAlone),
          .measured = share * 100,
          .limit = least * 100,
          .met = share >= least};
}

Case travel(const Settings& settings, bool pinned) {
  Batches batches(pinned);
  StaticInputs inputs(kDevice);
  inputs.load({batches.next()});
  const at::Tensor fixed = inputs.tensors().front().clone();
  Consumer loaded, copied;
  loaded.capture(inputs.tensors().front());
  copied.capture(fixed);
  const auto load = [&] {
    inputs.load({batches.next()});
    loaded.replay();
  };
  const auto copy = [&] {
    fixed.copy_(batches.next(), /*non_blocking=*/true);
    copied.replay();
  };
  for (int i = 0; i < 5; ++i) {
    load();
    check_sum(kLoaded, loaded, batches);
    copy();
    check_sum(kInFront, copied, batches);
  }
  const Contender contenders[] = {{kAlone, [&] { loaded.replay(); }}, {kInFront, copy}, {kLoaded, load}};
  const Plan plan = settings.plan(20);
  Case result{.name = fmt::format("batch of 64 MiB in {} host memory", pinned ? "pinned" : "ordinary"),
              .measure = "time per iteration, back to back",
              .unit = "us",
              .baseline = kAlone,
              .iterations = plan.iterations,
              .series = interleave(event_timer(), contenders, plan)};
  result.requirements = {hidden(result, 0.9)};
  return result;
}

}  // namespace

std::vector<Case> static_inputs(const Settings& settings) {
  const OnPoolStream stream;
  return {travel(settings, /*pinned=*/true), travel(settings, /*pinned=*/false)};
}

}  // namespace pianola::bench::cuda
