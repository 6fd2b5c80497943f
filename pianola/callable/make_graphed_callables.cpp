#include <pianola/callable/captured_callable.hpp>
#include <pianola/callable/graphed_callable.hpp>
#include <pianola/core/error.hpp>
#include <pianola/core/number_check.hpp>
#include <pianola/graph/device_check.hpp>
#include <pianola/trace/plain_check.hpp>

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace pianola {
namespace callable {
namespace {

using Samples = std::vector<std::vector<at::Tensor>>;  // leaves, per callable

[[noreturn]] void refuse(std::string what, std::string fix = "") {
  throw UsageError({.what = std::move(what), .where = "make_graphed_callables", .fix = std::move(fix)});
}

std::string callables_in_words(std::size_t callables) {
  return fmt::format("{} callable{}", callables, callables == 1 ? "" : "s");
}

void check_options(std::size_t callables, std::size_t samples, const CallableOptions& options) {
  if (callables == 0) refuse("no callable was given");
  const auto total = options.schedule.empty() ? callables : static_cast<std::size_t>(options.schedule.total_layers());
  if (callables != total) {
    refuse(fmt::format("the schedule has {} layers in {} chunks, but {} callables were given", total,
                       options.schedule.chunks(), callables),
           "give one callable per layer: all of chunk 1, then all of chunk 2, ...");
  }
  if (samples != callables) {
    refuse(fmt::format("got {} sample{} for {}", samples, samples == 1 ? "" : "s", callables_in_words(callables)),
           "pass one per callable: the list of arguments of one call; with a schedule it serves all microbatches");
  }
  check_at_least(1, "warmup", options.warmup);  // the first run finds the parameters
  check_at_least(1, "slots", options.slots);
  if (options.slots != 1 && !options.schedule.empty()) {
    refuse(fmt::format("slots is {}, but a schedule was given, which says how many each chunk needs", options.slots),
           "leave slots at 1");
  }
  if (options.delay_weight_gradients && !options.schedule.empty()) {
    refuse("delay_weight_gradients is set, but a schedule was given, which says which chunks delay them",
           "leave it off, and write -c-0.5 into the schedule where they are to be computed");
  }
  if (options.on_full == OnFull::overtake && !options.schedule.empty()) {
    refuse("on_full is OnFull::overtake, but a schedule was given, which says whose turn it is",
           "leave on_full at OnFull::refuse");
  }
  const auto check_hooks = [&](const char* name, std::size_t given) {
    if (given == 0 || given == callables) return;
    refuse(fmt::format("got {} {} for {}", given, name, callables_in_words(callables)),
           "pass one per callable, or none");
  };
  check_hooks("capture_hooks", options.capture_hooks.size());
  check_hooks("replay_hooks", options.replay_hooks.size());
}

void check_sample(const Structure& inputs, std::span<const at::Tensor> sample) {
  for (std::size_t i = 0; i < sample.size(); ++i) {
    const trace::Oddity odd = trace::oddity_of_input(sample[i]);
    if (odd == trace::Oddity::none) continue;
    Diagnosis diagnosis = trace::refuse_input(odd, inputs.name_of(i), sample[i]);
    diagnosis.where = "make_graphed_callables";
    throw UsageError(std::move(diagnosis));
  }
}

void check_modes() {
  const trace::Oddity odd = Ambient::current(c10::kCPU).oddity();
  if (odd == trace::Oddity::none) return;
  throw UsageError(trace::refuse_modes(odd, "make_graphed_callables()"));
}

c10::Device device_of(const Samples& samples) {
  std::optional<c10::Device> device;
  for (const auto& sample : samples) {
    for (const at::Tensor& tensor : sample) {
      if (!device) device = tensor.device();
      if (tensor.device() == *device) continue;
      refuse(fmt::format("the samples are on {} and on {}", device->str(), tensor.device().str()),
             "graphed callables of one call share one device");
    }
  }
  if (!device) refuse("no sample holds a tensor, so there is no device to capture on", "pass a tensor as an input");
  return graph::usable_device(*device);
}

// Inference mode is off while it lives: its tensors count no writes. Whether gradients are made stays as it was.
class NormalMode {
 public:
  NormalMode() {
    if (!c10::InferenceMode::is_enabled()) return;
    const bool gradients = at::GradMode::is_enabled();
    normal_.emplace(false);
    grad_mode_.emplace(gradients);
  }
  NormalMode(const NormalMode&) = delete;
  NormalMode& operator=(const NormalMode&) = delete;
  ~NormalMode() = default;

 private:
  std::optional<c10::InferenceMode> normal_;
  std::optional<at::AutoGradMode> grad_mode_;  // put back first
};

// Modules are in evaluation mode while it lives.
class EvaluationScope {
 public:
  explicit EvaluationScope(const ModuleView& module) : module_(module), flags_(module.flags()) {
    module_.set_training(false);
  }
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;
  ~EvaluationScope() { module_.set_flags(flags_); }

 private:
  const ModuleView& module_;
  std::vector<bool> flags_;
};

// All callables of one call, on the way from samples to graphs.
class Builder {
 public:
  Builder(std::vector<Callable> callables, const std::vector<std::vector<c10::IValue>>& samples,
          const CallableOptions& options, InputBuffers* buffers = nullptr)
      : options_(options), buffers_(buffers) {
    for (std::size_t i = 0; i < callables.size(); ++i) {
      auto subject = std::make_shared<Subject>(std::move(callables[i]), samples[i], fmt::format("callable {}", i + 1));
      if (!options.capture_hooks.empty()) subject->hooks = options.capture_hooks[i];
      if (!options.replay_hooks.empty()) subject->replay_hooks = options.replay_hooks[i];
      subject->delays_weights = options.delay_weight_gradients;
      (void)subject->inputs.flatten(c10::ivalue::Tuple::create(samples[i]), samples_.emplace_back());
      check_sample(subject->inputs, samples_.back());
      subjects_.push_back(std::move(subject));
    }
    device_ = device_of(samples_);
    if (options.schedule.empty()) return;
    turn_ = std::make_shared<ScheduleTurn>(options.schedule);
    for (std::size_t i = 0; i < subjects_.size(); ++i) {
      subjects_[i]->delays_weights = options.schedule.delays_weight_gradients(turn_->chunk_of(static_cast<int>(i)));
    }
  }

  std::vector<GraphedCallable> build() {
    CaptureContext context{.options = options_,
                           .device = *device_,
                           .pool = options_.pool.empty() ? GraphPoolRef(GraphPool(*device_)) : options_.pool};
    make_modes();
    context.any_order = needs_any_order();
    warm_up(context);
    check_named_parameters(context);
    for (const auto& mode : modes_) mode->decide_gradients(context);
    turn_ == nullptr ? capture_all(context) : capture_in_order(context);
    for (std::size_t i = 0; i < evaluation_.size(); ++i) {
      if (evaluation_[i] == nullptr) continue;
      const EvaluationScope scope(*subjects_[i]->module);
      evaluation_[i]->capture_forward(context, 0);
    }
    for (const auto& mode : modes_) mode->finish();
    for (const auto& mode : evaluation_) {
      if (mode != nullptr) mode->finish();
    }
    return assemble(context.pool);
  }

 private:
  [[nodiscard]] int slots_of(std::size_t callable) const {
    return turn_ == nullptr ? options_.slots : turn_->plan().slots(turn_->chunk_of(static_cast<int>(callable)));
  }

  void make_modes() {
    for (std::size_t i = 0; i < subjects_.size(); ++i) {
      const Subject& subject = *subjects_[i];
      const Mode now{.training = subject.module->training(), .gradients = at::GradMode::is_enabled()};
      modes_.push_back(std::make_unique<CapturedMode>(subject, now, samples_[i], now.gradients ? slots_of(i) : 1,
                                                      *device_, buffers_));
      if (!options_.evaluation) continue;
      if (!subject.callable.is_module()) {
        refuse(fmt::format("{} is a function, which has no evaluation mode", subject.name),
               "leave CallableOptions::evaluation off, or capture a module");
      }
      auto& evaluation = evaluation_.emplace_back();
      const Mode wanted{.training = false, .gradients = false};
      if (now == wanted) continue;
      const EvaluationScope scope(*subject.module);
      evaluation = std::make_unique<CapturedMode>(subject, wanted, samples_[i], 1, *device_);
    }
  }

  void warm_up(CaptureContext& context) {
    if (options_.pre_warmup) options_.pre_warmup();
    for (const auto& mode : modes_) mode->warm_up(context);
    for (std::size_t i = 0; i < evaluation_.size(); ++i) {
      if (evaluation_[i] == nullptr) continue;
      const EvaluationScope scope(*subjects_[i]->module);
      evaluation_[i]->warm_up(context);
    }
    if (options_.post_warmup) options_.post_warmup();
  }

  void check_named_parameters(const CaptureContext& context) const {
    for (const at::Tensor& named : options_.through_autograd) {
      if (named.defined() && context.uses.count(named.unsafeGetTensorImpl()) != 0) continue;
      refuse("a tensor in 'through_autograd' is no parameter that a callable differentiates");
    }
  }

  // Note [Calls in any order]
  // Where there are several callables or slots, nothing says in which order they are called, or a schedule says it; in
  // each case a graph may be replayed while results of another one are still needed. So no result may lie in bytes that
  // another graph writes: activations are freed when all graphs are captured, and only then, and no forward pass puts
  // them where an earlier graph has its scratch (Note [Scratch that must not become a result]). What graphs share is
  // scratch. One callable with one slot needs none of that: its backward frees activations as it goes and uses their
  // memory for its own gradients.
  [[nodiscard]] bool needs_any_order() const {
    return modes_.size() > 1 || modes_.front()->passes().size() > 1 || !evaluation_.empty();
  }

  void capture_all(CaptureContext& context) {
    for (const auto& mode : modes_) {
      for (std::size_t slot = 0; slot < mode->passes().size(); ++slot) mode->capture_forward(context, slot);
    }
    for (auto mode = modes_.rbegin(); mode != modes_.rend(); ++mode) {
      for (std::size_t slot = (*mode)->passes().size(); slot-- > 0;) {
        (*mode)->capture_backward(context, slot);
        (*mode)->capture_weights(context, slot);
      }
    }
  }

  static void capture(CapturedMode& mode, Direction direction, CaptureContext& context, std::size_t slot) {
    switch (direction) {
      case Direction::forward:
        return mode.capture_forward(context, slot);
      case Direction::backward:
        return mode.capture_backward(context, slot);
      case Direction::weight_gradients:
        return mode.capture_weights(context, slot);
    }
  }

  void capture_in_order(CaptureContext& context) {
    const Schedule& schedule = turn_->schedule();
    std::vector<std::pair<ScheduleStep, std::size_t>> captured;  // a step and its slot, once per slot
    for (ScheduleStep step : schedule.steps()) {
      const auto slot = static_cast<std::size_t>(turn_->plan().slot(step.chunk, step.microbatch));
      step.microbatch = 0;
      if (std::find(captured.begin(), captured.end(), std::pair(step, slot)) != captured.end()) continue;
      captured.emplace_back(step, slot);
      const int layers = schedule.layers(step.chunk);
      for (int i = 0; i < layers; ++i) {
        const int layer =
            schedule.first_layer(step.chunk) + (step.direction == Direction::forward ? i : layers - 1 - i);
        CapturedMode& mode = *modes_[static_cast<std::size_t>(layer)];
        if (slot >= mode.passes().size()) continue;  // without gradients one slot serves all
        capture(mode, step.direction, context, slot);
      }
    }
  }

  std::vector<GraphedCallable> assemble(const GraphPoolRef& pool) {
    std::vector<GraphedCallable> result;
    for (std::size_t i = 0; i < subjects_.size(); ++i) {
      auto captured =
          std::make_shared<CapturedCallable>(subjects_[i], options_, *device_, pool, static_cast<int>(i), turn_);
      captured->add(std::move(modes_[i]));
      if (!evaluation_.empty() && evaluation_[i] != nullptr) captured->add(std::move(evaluation_[i]));
      result.emplace_back(std::move(captured));
    }
    return result;
  }

  const CallableOptions& options_;
  InputBuffers* buffers_;
  std::vector<std::shared_ptr<Subject>> subjects_;
  Samples samples_;
  std::optional<c10::Device> device_;
  std::shared_ptr<ScheduleTurn> turn_;
  std::vector<std::unique_ptr<CapturedMode>> modes_;
  std::vector<std::unique_ptr<CapturedMode>> evaluation_;  // empty, or per callable
};

}  // namespace

GraphedCallable make_graphed_callable_in(InputBuffers* buffers, Callable callable,
                                         const std::vector<c10::IValue>& sample, const CallableOptions& options) {
  check_modes();
  check_options(1, 1, options);
  const NormalMode normal;
  std::vector<Callable> callables;
  callables.push_back(std::move(callable));
  return std::move(Builder(std::move(callables), {sample}, options, buffers).build().front());
}

std::unique_ptr<CapturedMode> capture_mode(const Subject& subject, Mode mode, std::span<const at::Tensor> sample,
                                           const CallableOptions& options, int slots, c10::Device device) {
  check_sample(subject.inputs, sample);
  const NormalMode normal;
  CaptureContext context{.options = options, .device = device, .pool = GraphPoolRef(GraphPool(device))};
  auto captured = std::make_unique<CapturedMode>(subject, mode, sample, mode.gradients ? slots : 1, device);
  captured->warm_up(context);
  captured->decide_gradients(context);
  const std::size_t passes = captured->passes().size();
  context.any_order = passes > 1;
  for (std::size_t slot = 0; slot < passes; ++slot) captured->capture_forward(context, slot);
  for (std::size_t slot = passes; slot-- > 0;) {
    captured->capture_backward(context, slot);
    captured->capture_weights(context, slot);
  }
  captured->finish();
  return captured;
}

}  // namespace callable

std::vector<GraphedCallable> make_graphed_callables(std::vector<Callable> callables,
                                                    const std::vector<std::vector<c10::IValue>>& samples,
                                                    const CallableOptions& options) {
  callable::check_modes();
  callable::check_options(callables.size(), samples.size(), options);
  const callable::NormalMode normal;
  return callable::Builder(std::move(callables), samples, options).build();
}

GraphedCallable make_graphed_callable(Callable callable, const std::vector<c10::IValue>& sample,
                                      const CallableOptions& options) {
  return callable::make_graphed_callable_in(nullptr, std::move(callable), sample, options);
}

}  // namespace pianola
