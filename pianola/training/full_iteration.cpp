#include <pianola/training/full_iteration.hpp>

#include <pianola/callable/function_call.hpp>
#include <pianola/callable/structure_table.hpp>
#include <pianola/core/error.hpp>
#include <pianola/core/moved_from.hpp>
#include <pianola/training/iteration_cache.hpp>
#include <pianola/training/static_inputs.hpp>

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

namespace pianola {
namespace {

using callable::FunctionCall;
using callable::SignatureCache;
using training::key_of;

std::optional<Callable> callable_of(FullIteration::Step step) {
  if (!step) return std::nullopt;
  return Callable::Run(std::move(step));
}

// Static inputs are told apart by themselves: other static tensors, of whatever shape, need a graph of their own.
SignatureCache::Key key_of(Stage stage, const StaticInputs& current) { return key_of(stage, -current.key()); }

}  // namespace

struct FullIteration::Impl {
  Impl(Step training, Step validation, FullIterationOptions wanted)
      : steps{callable_of(std::move(training)), callable_of(std::move(validation))},
        options(std::move(wanted)),
        cache(training::cache_options(options)) {}

  [[nodiscard]] const Callable& step(Stage stage) const {
    const std::optional<Callable>& step = steps[static_cast<std::size_t>(stage)];
    if (step) return *step;
    throw UsageError({.what = fmt::format("there is no {} step", in_words(stage)),
                      .fix = "give FullIteration a step for it when you make it"});
  }

  // With the current batch of static inputs, which a graph reads where it is.
  [[nodiscard]] auto call_of(Stage stage, const StaticInputs& current) const {
    return FunctionCall(step(stage), {.fixed = current.tensors()},
                        [&batch = current.microbatches()](std::span<const at::Tensor>) { return batch; });
  }

  void capture_buckets(StaticInputs& inputs, Stage stage);

  std::array<std::optional<Callable>, 2> steps;
  const FullIterationOptions options;
  SignatureCache cache;
  callable::StructureTable structures{"microbatches"};
};

void FullIteration::Impl::capture_buckets(StaticInputs& inputs, Stage stage) {
  const std::size_t buckets = inputs.bucket_uses().size();
  const int capacity = options.capacity;
  if (buckets > static_cast<std::size_t>(capacity)) {
    throw UsageError({.what = fmt::format("there are {} buckets, and room for {} graphs", buckets, capacity),
                      .fix = fmt::format("set FullIterationOptions::capacity to {} or more", buckets)});
  }
  inputs.for_each_bucket([&](std::int64_t) {
    auto call = call_of(stage, inputs);
    cache.capture(key_of(stage, inputs), call.inputs(), call);
  });
}

FullIteration::FullIteration(Step training, FullIterationOptions options)
    : FullIteration(std::move(training), {}, std::move(options)) {}
FullIteration::FullIteration(Step training, Step validation, FullIterationOptions options)
    : impl_(std::make_unique<Impl>(std::move(training), std::move(validation), std::move(options))) {}
FullIteration::FullIteration(FullIteration&&) noexcept = default;
FullIteration& FullIteration::operator=(FullIteration&&) noexcept = default;
FullIteration::~FullIteration() = default;

c10::IValue FullIteration::operator()(const std::vector<c10::IValue>& microbatches, Stage stage) {
  std::vector<at::Tensor> tensors;
  const auto [key, structure] =
      unless_moved_from(impl_, "a full iteration").structures.find(c10::ivalue::Tuple::create(microbatches), tensors);
  FunctionCall call(impl_->step(stage), {.copied = tensors}, callable::arguments_of(structure));
  c10::IValue result = call.run(impl_->cache, key_of(stage, key));
  if (impl_->options.after_iteration) impl_->options.after_iteration(stage);
  return result;
}

c10::IValue FullIteration::operator()(StaticInputs& inputs, Stage stage) {
  auto call = unless_moved_from(impl_, "a full iteration").call_of(stage, inputs);
  const SignatureCache::Key key = key_of(stage, inputs);
  if (inputs.bucket() != 0 && impl_->cache.is_due(key, call.inputs())) [[unlikely]]
    impl_->capture_buckets(inputs, stage);
  c10::IValue result = call.run(impl_->cache, key);
  if (impl_->options.after_iteration) impl_->options.after_iteration(stage);
  return result;
}

void FullIteration::reset(Stage stage) {
  if (impl_ != nullptr) impl_->cache.reset(static_cast<std::size_t>(stage));
}

void FullIteration::reset() {
  reset(Stage::training);
  reset(Stage::validation);
}

FullIterationInfo FullIteration::info() const {
  return training::info_of(unless_moved_from(impl_, "a full iteration").cache);
}

}  // namespace pianola
