#include <pianola/callable/graphed.hpp>

#include <pianola/callable/function_call.hpp>
#include <pianola/callable/signature_cache.hpp>
#include <pianola/callable/structure_table.hpp>
#include <pianola/core/error.hpp>
#include <pianola/core/moved_from.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

namespace pianola {
namespace {

using callable::FunctionCall;

// Of plain lists of tensors, whose number is part of the signature anyway.
constexpr std::int64_t kFlatKey = 0;

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
    return callable::leaves_of(forward({inputs.begin(), inputs.end()}));
  }
  const auto as_they_are = [](std::span<const at::Tensor> tensors) {
    return std::vector<c10::IValue>(tensors.begin(), tensors.end());
  };
  FunctionCall call(unless_moved_from(impl_, "a graphed function").original, {.copied = inputs}, as_they_are);
  if (auto result = impl_->cache.run({kFlatKey}, call.inputs(), call)) return std::move(result->fresh);
  return call.eager_results();
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
  const auto [key, structure] =
      unless_moved_from(impl_, "a graphed function").structures.find(c10::ivalue::Tuple::create(inputs), tensors);
  return FunctionCall(impl_->original, {.copied = tensors}, callable::arguments_of(structure)).run(impl_->cache, {key});
}

bool Graphed::backward_weights() { return unless_moved_from(impl_, "a graphed function").cache.backward_weights(); }
void Graphed::reset() {
  if (impl_ != nullptr) impl_->cache.reset();
}
GraphedInfo Graphed::info() const { return unless_moved_from(impl_, "a graphed function").cache.info(); }
const Callable& Graphed::original() const noexcept { return impl_->original; }

Graphed graphed(Callable original, GraphedOptions options) { return {std::move(original), std::move(options)}; }

}  // namespace pianola
