#include <pianola/callable/graphed.hpp>

#include <pianola/callable/graph_bank.hpp>
#include <pianola/callable/structure.hpp>
#include <pianola/core/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

namespace pianola {
namespace {

using callable::BankCall;
using callable::Capturable;
using callable::GraphBank;
using callable::Structure;

// Of plain lists of tensors, whose number is part of the signature anyway.
constexpr std::int64_t kFlatKey = 0;

// The numbers of the arguments' structures that are in use. One that is forgotten comes back under another number.
class Structures {
 public:
  struct Match {
    std::int64_t key;
    std::shared_ptr<const Structure> structure;
  };

  // Its tensors go into `tensors`.
  Match find(const c10::IValue& arguments, std::vector<at::Tensor>& tensors) {
    const std::lock_guard lock(mutex_);
    for (auto known = known_.begin(); known != known_.end(); ++known) {
      tensors.clear();
      if (known->structure->flatten(arguments, tensors)) continue;
      std::rotate(known_.begin(), known, known + 1);
      return known_.front();
    }
    if (known_.size() == kMost) known_.pop_back();
    tensors.clear();
    auto structure = std::make_shared<const Structure>(arguments, "input");
    (void)structure->flatten(arguments, tensors);
    return *known_.insert(known_.begin(), {.key = next_key_++, .structure = std::move(structure)});
  }

 private:
  static constexpr std::size_t kMost = 128;
  std::vector<Match> known_;  // most recently used first
  std::int64_t next_key_ = kFlatKey + 1;
  std::mutex mutex_;
};

// The structure of a result, which the first run under capture finds out.
using OutputStructure = std::optional<Structure>;

std::vector<at::Tensor> leaves_of(const c10::IValue& value) {
  std::vector<at::Tensor> leaves;
  (void)Structure(value, "output").flatten(value, leaves);
  return leaves;
}

std::vector<at::Tensor> flatten(const c10::IValue& value, OutputStructure& structure) {
  if (!structure) structure.emplace(value, "output");
  std::vector<at::Tensor> leaves;
  if (auto difference = structure->flatten(value, leaves)) {
    throw UsageError({.what = fmt::format("the function returned another structure in another run: {}", *difference),
                      .fix = "a graph always returns the same: let nothing but tensors vary between calls",
                      .rule = "PG505"});
  }
  return leaves;
}

// One call of a C++ function.
class CallableCall final : public BankCall {
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
      return flatten(original(arguments(structure.get(), tensors)), *output);
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
  Impl(Callable callable, GraphedOptions options) : original(std::move(callable)), bank(std::move(options), original) {}

  Callable original;
  GraphBank bank;
  Structures structures;
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
  if (auto result = impl_->bank.run(kFlatKey, inputs, call)) return std::move(result->leaves);
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
  const auto result = impl_->bank.run(key, tensors, call);
  if (!result) return call.take_result();
  return (*std::static_pointer_cast<const OutputStructure>(result->structure))->rebuild(result->leaves);
}

void Graphed::reset() { impl_->bank.reset(); }
GraphedInfo Graphed::info() const { return impl_->bank.info(); }
const Callable& Graphed::original() const noexcept { return impl_->original; }

Graphed graphed(Callable original, GraphedOptions options) { return {std::move(original), std::move(options)}; }

}  // namespace pianola
