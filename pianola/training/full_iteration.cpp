#include <pianola/training/full_iteration.hpp>

#include <pianola/callable/output_structure.hpp>
#include <pianola/callable/structure_table.hpp>
#include <pianola/core/error.hpp>
#include <pianola/training/iteration_cache.hpp>
#include <pianola/training/static_inputs.hpp>

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace pianola {
namespace {

using callable::CallInputs;
using callable::Capturable;
using callable::OutputStructure;
using callable::SignatureCache;
using training::key_of;

// One iteration over microbatches that can be put together from tensors.
class StepCall final : public callable::Call {
 public:
  using Microbatches = std::function<std::vector<c10::IValue>(std::span<const at::Tensor> tensors)>;

  // `microbatches` are what an eager run is given; `rebuild` puts them together around a graph's own tensors.
  StepCall(const FullIteration::Step& step, const std::vector<c10::IValue>& microbatches, Microbatches rebuild)
      : step_(step), microbatches_(microbatches), rebuild_(std::move(rebuild)) {}

  void run_eagerly() override { result_ = step_(microbatches_); }
  [[nodiscard]] std::vector<at::Tensor> eager_results() const override { return callable::leaves_of(result_); }

  [[nodiscard]] Capturable to_capture() override {
    const auto result = std::make_shared<OutputStructure>();
    Callable::Run run = [this, result](const std::vector<c10::IValue>& values) -> c10::IValue {
      std::vector<at::Tensor> tensors;
      tensors.reserve(values.size());
      for (const c10::IValue& value : values) tensors.push_back(value.toTensor());
      return result->flatten(step_(rebuild_(tensors)));
    };
    return {.callable = std::move(run), .structure = result};
  }

  [[nodiscard]] c10::IValue take_result() noexcept { return std::move(result_); }

 private:
  const FullIteration::Step& step_;
  const std::vector<c10::IValue>& microbatches_;
  Microbatches rebuild_;
  c10::IValue result_;
};

// A call with the current batch of static inputs. They are told apart by themselves: other static tensors, of whatever
// shape, need a graph of their own.
struct FixedCall {
  FixedCall(const FullIteration::Step& wanted, const StaticInputs& current)
      : step(wanted), microbatches(current.microbatches()), key(-current.key()), inputs{.fixed = current.tensors()} {}

  [[nodiscard]] StepCall call() const {
    return {step, microbatches, [this](std::span<const at::Tensor>) { return microbatches; }};
  }

  const FullIteration::Step& step;
  const std::vector<c10::IValue>& microbatches;
  const std::int64_t key;
  const CallInputs inputs;
};

}  // namespace

struct FullIteration::Impl {
  Impl(Step training, Step validation, FullIterationOptions wanted)
      : steps{std::move(training), std::move(validation)},
        options(std::move(wanted)),
        cache(training::cache_options(options)) {}

  [[nodiscard]] const Step& step(Stage stage) const {
    const Step& step = steps[static_cast<std::size_t>(stage)];
    if (step) return step;
    throw UsageError({.what = fmt::format("there is no {} step", in_words(stage)),
                      .fix = "give FullIteration a step for it when you make it"});
  }

  void capture_buckets(StaticInputs& inputs, Stage stage);
  c10::IValue run(SignatureCache::Key key, const CallInputs& inputs, StepCall& call);

  std::array<Step, 2> steps;
  const FullIterationOptions options;
  SignatureCache cache;
  callable::StructureTable structures{"microbatches"};
};

c10::IValue FullIteration::Impl::run(SignatureCache::Key key, const CallInputs& inputs, StepCall& call) {
  const auto replayed = cache.run(key, inputs, call);
  c10::IValue result =
      replayed ? std::static_pointer_cast<const OutputStructure>(replayed->structure)->rebuild(replayed->leaves())
               : call.take_result();
  if (options.after_iteration) options.after_iteration(static_cast<Stage>(key.function));
  return result;
}

void FullIteration::Impl::capture_buckets(StaticInputs& inputs, Stage stage) {
  const std::size_t buckets = inputs.bucket_uses().size();
  const int capacity = options.capacity;
  if (buckets > static_cast<std::size_t>(capacity)) {
    throw UsageError({.what = fmt::format("there are {} buckets, and room for {} graphs", buckets, capacity),
                      .fix = fmt::format("set FullIterationOptions::capacity to {} or more", buckets)});
  }
  inputs.for_each_bucket([&](std::int64_t) {
    const FixedCall fixed(step(stage), inputs);
    StepCall call = fixed.call();
    cache.capture(key_of(stage, fixed.key), fixed.inputs, call);
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
  const auto [key, structure] = impl_->structures.find(c10::ivalue::Tuple::create(microbatches), tensors);
  StepCall call(impl_->step(stage), microbatches, [structure](std::span<const at::Tensor> own) {
    return structure->rebuild(own).toTupleRef().elements().vec();
  });
  return impl_->run(key_of(stage, key), {.copied = tensors}, call);
}

c10::IValue FullIteration::operator()(StaticInputs& inputs, Stage stage) {
  const FixedCall fixed(impl_->step(stage), inputs);
  const SignatureCache::Key key = key_of(stage, fixed.key);
  if (inputs.bucket() != 0 && impl_->cache.is_due(key, fixed.inputs)) [[unlikely]]
    impl_->capture_buckets(inputs, stage);
  StepCall call = fixed.call();
  return impl_->run(key, fixed.inputs, call);
}

void FullIteration::reset(Stage stage) { impl_->cache.reset(static_cast<std::size_t>(stage)); }

void FullIteration::reset() {
  reset(Stage::training);
  reset(Stage::validation);
}

FullIterationInfo FullIteration::info() const { return training::info_of(impl_->cache); }

}  // namespace pianola
