#include <apps/train/training.hpp>

#include <apps/demo/memory_account.hpp>
#include <apps/demo/text.hpp>
#include <apps/train/model.hpp>

#include <pianola/callable/graphed_layers.hpp>
#include <pianola/core/error.hpp>
#include <pianola/training/adam.hpp>
#include <pianola/training/clip_grad.hpp>
#include <pianola/training/full_iteration.hpp>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>

namespace pianola::train {
namespace {

using Clock = std::chrono::steady_clock;
using Batch = std::vector<at::Tensor>;

constexpr double kMostGradientNorm = 1.0;
constexpr AdamWOptions kOptimizer{.lr = 3e-3, .beta2 = 0.99, .weight_decay = 0.1};

// Pieces of a text; for a vision model images of what is to be said, with noise.
class Batches {
 public:
  Batches(const TrainingConfig& config, const demo::Text& text, c10::Device device)
      : texts_(text, config.batch, config.model.context, config.seed),
        device_(device),
        noise_(at::make_generator<at::CPUGeneratorImpl>(config.seed)) {
    if (config.model.kind != Kind::vision) return;
    glyphs_ = at::randn({text.vocabulary(), kGlyph, kGlyph}, noise_).sign();
  }

  Batch next() {
    const demo::BatchStream::Batch piece = texts_.next();
    Batch batch = {piece.inputs.to(device_), piece.targets.to(device_)};
    if (glyphs_.defined()) {
      const at::Tensor cells = glyphs_.index_select(0, piece.targets.flatten());
      const std::int64_t length = piece.targets.size(1);
      const at::Tensor image =
          cells.view({-1, length, kGlyph, kGlyph}).transpose(1, 2).reshape({-1, kGlyph, kGlyph * length});
      batch.push_back((image + at::randn(image.sizes(), noise_)).to(device_));
    }
    return batch;
  }

 private:
  demo::BatchStream texts_;
  c10::Device device_;
  at::Generator noise_;
  at::Tensor glyphs_;
};

// How a step is made, and what became of it.
class Way {
 public:
  Way() = default;
  Way(const Way&) = delete;
  Way& operator=(const Way&) = delete;
  virtual ~Way() = default;
  using Step = std::function<at::Tensor(const Batch&)>;
  virtual at::Tensor run(const Step& step, const Batch& batch) { return step(batch); }
  virtual void tell(Outcome& /*outcome*/) const {}

 protected:
  [[nodiscard]] auto listener() {
    return [this](const std::string& reason) {
      if (std::find(reasons_.begin(), reasons_.end(), reason) == reasons_.end()) reasons_.push_back(reason);
    };
  }
  std::vector<std::string> reasons_;
};

class ByParts final : public Way {
 public:
  ByParts(Model& model, const Scope& scope) {
    std::vector<std::string> wanted = scope.parts.empty() ? std::vector<std::string>{"layer"} : scope.parts;
    std::vector<GraphedLayers::Layer> layers;
    std::vector<Part*> parts;
    for (const NamedPart& one : model->parts()) {
      if (std::find(wanted.begin(), wanted.end(), one.part->scope()) == wanted.end()) continue;
      layers.push_back({.name = one.name, .callable = one.part->callable()});
      parts.push_back(one.part);
    }
    if (layers.empty()) {
      throw UsageError({.what = fmt::format("the model has no part that is called {}", fmt::join(wanted, " or ")),
                        .fix = "choose a scope of this model"});
    }
    graphed_ = std::make_unique<GraphedLayers>(graph_layers(
        std::move(layers), {.warmup = scope.warmup, .retain_graph = scope.retain_graph, .on_fallback = listener()}));
    for (std::size_t i = 0; i < parts.size(); ++i) {
      parts[i]->call_through([graphed = graphed_.get(), i](const Batch& inputs) { return (*graphed)[i].call(inputs); });
    }
  }

  void tell(Outcome& outcome) const override {
    outcome.graphed = graphed_->size();
    outcome.reasons = reasons_;
    for (const LayersInfo::Layer& layer : graphed_->info().layers) {
      std::size_t replays = 0;
      for (const SignatureInfo& one : layer.info.signatures) replays += one.replays;
      outcome.captured += replays > 0 ? 1 : 0;
      outcome.replays += replays;
    }
  }

 private:
  std::unique_ptr<GraphedLayers> graphed_;
};

class ByIteration final : public Way {
 public:
  explicit ByIteration(const Scope& scope) : warmup_(scope.warmup) {}

  at::Tensor run(const Step& step, const Batch& batch) override {
    if (iteration_ == nullptr) {
      iteration_ = std::make_unique<FullIteration>(
          [step](const std::vector<c10::IValue>& microbatches) -> c10::IValue {
            return step(microbatches.front().toTensorVector());
          },
          FullIterationOptions{
              .warmup = warmup_, .output = OutputPolicy::clone, .eager_fallback = true, .on_fallback = listener()});
    }
    return (*iteration_)({c10::IValue(batch)}).toTensor();
  }

  void tell(Outcome& outcome) const override {
    outcome.graphed = 1;
    outcome.reasons = reasons_;
    if (iteration_ == nullptr) return;
    for (const IterationInfo& one : iteration_->info().signatures) outcome.replays += one.replays;
    outcome.captured = outcome.replays > 0 ? 1 : 0;
  }

 private:
  int warmup_;
  std::unique_ptr<FullIteration> iteration_;
};

std::unique_ptr<Way> way_of(Model& model, const Scope& scope) {
  switch (scope.impl) {
    case CudaGraphImpl::none:
      return std::make_unique<Way>();
    case CudaGraphImpl::full_iteration:
      return std::make_unique<ByIteration>(scope);
    default:
      return std::make_unique<ByParts>(model, scope);
  }
}

}  // namespace

bool Outcome::equals(const Outcome& other) const {
  return at::equal(losses, other.losses) &&
         std::equal(parameters.begin(), parameters.end(), other.parameters.begin(), other.parameters.end(),
                    [](const at::Tensor& one, const at::Tensor& two) { return at::equal(one, two); });
}

Outcome train(const TrainingConfig& config, const demo::Text& text, c10::Device device, const Scope& scope) {
  at::manual_seed(config.seed);
  ModelConfig of_model = config.model;
  if (scope.dispatch_is_eager) of_model.sizes.dispatch = Dispatch::eager;
  Model model(of_model);
  model->to(device);
  AdamW optimizer(model->parameters(), kOptimizer);
  Batches batches(config, text, device);
  const std::unique_ptr<Way> way = way_of(model, scope);
  const Way::Step step = [&](const Batch& batch) {
    optimizer.zero_grad();
    const at::Tensor loss = model->loss(batch);
    loss.backward(/*gradient=*/{}, /*retain_graph=*/scope.retain_graph);
    clip_grad_norm_(optimizer, kMostGradientNorm);
    optimizer.step();
    return loss.detach();
  };
  const demo::MemoryAccount memory(device);
  std::vector<at::Tensor> losses;
  Clock::time_point half;
  const std::int64_t counted_from = config.steps / 2;
  for (std::int64_t i = 0; i < config.steps; ++i) {
    if (i == counted_from) {
      if (!losses.empty()) static_cast<void>(losses.back().item<float>());  // waits for the device
      half = Clock::now();
    }
    losses.push_back(way->run(step, batches.next()).clone());
  }
  Outcome outcome;
  outcome.losses = at::stack(losses).cpu();  // which waits
  const std::chrono::duration<double, std::milli> took = Clock::now() - half;
  outcome.ms_per_step = took.count() / static_cast<double>(config.steps - counted_from);
  outcome.bytes = memory.most_beyond_start();
  for (const at::Tensor& parameter : model->parameters()) outcome.parameters.push_back(parameter.detach().clone());
  way->tell(outcome);
  return outcome;
}

}  // namespace pianola::train
