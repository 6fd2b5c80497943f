#include <pianola/callable/graphed.hpp>

#include <pianola/callable/output_structure.hpp>
#include <pianola/callable/signature_cache.hpp>
#include <pianola/callable/structure_table.hpp>
#include <pianola/core/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

namespace pianola {
namespace {

using callable::Capturable;
using callable::leaves_of;
using callable::OutputStructure;
using callable::Structure;

// Of plain lists of tensors, whose number is part of the signature anyway.
constexpr std::int64_t kFlatKey = 0;

// One call of a C++ function.
class CallableCall final : public callable::Call {
 public:
  using Arguments = std::function<std::vector<c10::IValue>(std::span<const at::Tensor>)>;

  CallableCall(const Callable& original, std::span<const at::Tensor> inputs, const Structure* structure)
      : original_(original), inputs_(inputs), structure_(structure) {}

  void run_eagerly() override { result_ = original_(arguments(structure_, inputs_)); }
  [[nodiscard]] std::vector<at::Tensor> eager_results() const override { return leaves_of(result_); }

  [[nodiscard]] Capturable to_capture() override {
    const auto output = std::make_shared<OutputStructure>();
    std::shared_ptr<const Structure> structure;
    if (structure_ != nullptr) structure = std::make_shared<const Structure>(*structure_);
    Callable::Run run = [original = original_, structure, output](std::vector<c10::IValue> values) -> c10::IValue {
      std::vector<at::Tensor> tensors;
      for (const c10::IValue& value : values) tensors.push_back(value.toTensor());
      return output->flatten(original(arguments(structure.get(), tensors)));
    };
    if (!original_.is_module()) return {.callable = std::move(run), .structure = output};
    return {.callable = Callable::of_module(std::move(run), [original = original_] { return original.view(); }),
            .structure = output};
  }

  [[nodiscard]] c10::IValue take_result() noexcept { return std::move(result_); }

 private:
  static std::vector<c10::IValue> arguments(const Structure* structure, std::span<const at::Tensor> tensors) {
    if (structure == nullptr) return {tensors.begin(), tensors.end()};
    return structure->rebuild(tensors).toTupleRef().elements().vec();
  }

  const Callable& original_;
  std::span<const at::Tensor> inputs_;
  const Structure* structure_;  // of the arguments; nullptr: they are the tensors
  c10::IValue result_;
};

}  // namespace

struct Graphed::Impl {
  Impl(Callable callable, GraphedOptions options)
      : original(std::move(callable)), cache(std::move(options), [original = original] { return original.view(); }) {}

  Callable original;
  callable::SignatureCache cache;
  callable::StructureTable structures{"input"};
};

Graphed::Graphed(Callable original, GraphedOptions options)
    : impl_(std::make_unique<Impl>(std::move(original), std::move(options))) {}
Graphed::Graphed(Graphed&&) noexcept = default;
Graphed& Graphed::operator=(Graphed&&) noexcept = default;
Graphed::~Graphed() = default;

std::vector<at::Tensor> Graphed::call(std::span<const at::Tensor> inputs) {
  if (!std::all_of(inputs.begin(), inputs.end(), [](const at::Tensor& input) { return input.defined(); })) {
    return leaves_of(forward({inputs.begin(), inputs.end()}));
  }
  CallableCall call(impl_->original, inputs, nullptr);
  if (auto result = impl_->cache.run({kFlatKey}, {.copied = inputs}, call)) return std::move(result->fresh);
  return leaves_of(call.take_result());
}

at::Tensor Graphed::call_one(std::span<const at::Tensor> inputs) {
  std::vector<at::Tensor> outputs = call(inputs);
  if (outputs.size() != 1) [[unlikely]] {
    throw UsageError({.what = fmt::format("operator() returns one tensor, but the function returns {}", outputs.size()),
                      .fix = "use call() for a flat list, or forward() for the structure"});
  }
  return std::move(outputs.front());
}

c10::IValue Graphed::forward(const std::vector<c10::IValue>& inputs) {
  std::vector<at::Tensor> tensors;
  const auto [key, structure] = impl_->structures.find(c10::ivalue::Tuple::create(inputs), tensors);
  CallableCall call(impl_->original, tensors, structure.get());
  const auto result = impl_->cache.run({key}, {.copied = tensors}, call);
  if (!result) return call.take_result();
  return std::static_pointer_cast<const OutputStructure>(result->structure)->rebuild(result->leaves());
}

void Graphed::reset() { impl_->cache.reset(); }
GraphedInfo Graphed::info() const { return impl_->cache.info(); }
const Callable& Graphed::original() const noexcept { return impl_->original; }

Graphed graphed(Callable original, GraphedOptions options) { return {std::move(original), std::move(options)}; }

}  // namespace pianola
