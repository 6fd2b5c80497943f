#pragma once
#include <pianola/callable/call.hpp>
#include <pianola/callable/callable.hpp>
#include <pianola/callable/output_structure.hpp>
#include <pianola/callable/signature_cache.hpp>
#include <pianola/callable/structure.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace pianola::callable {

/// The same function or module, run another way.
[[nodiscard]] inline Callable with_run(const Callable& callable, Callable::Run run) {
  if (!callable.is_module()) return run;
  return Callable::of_module(std::move(run), [callable] { return callable.view(); });
}

/// For FunctionCall: arguments of a structure.
[[nodiscard]] inline auto arguments_of(std::shared_ptr<const Structure> structure) {
  return [structure = std::move(structure)](std::span<const at::Tensor> tensors) {
    return structure->rebuild(tensors).toTupleRef().elements().vec();
  };
}

/// One call of a C++ function.
///
/// @tparam Arguments  Puts the function's arguments together around tensors: those of the call, or a graph's own.
template <typename Arguments>
class FunctionCall final : public Call {
 public:
  FunctionCall(const Callable& function, const CallInputs& inputs, Arguments arguments)
      : function_(function), inputs_(inputs), arguments_(std::move(arguments)) {}

  /// Its result, replayed or eager.
  [[nodiscard]] c10::IValue run(SignatureCache& cache, SignatureCache::Key key) {
    const auto replayed = cache.run(key, inputs_, *this);
    if (!replayed) return std::move(result_);
    return static_cast<const OutputStructure*>(replayed->structure.get())->rebuild(replayed->leaves());
  }
  [[nodiscard]] const CallInputs& inputs() const noexcept { return inputs_; }

  void run_eagerly() override { result_ = function_(arguments_(inputs_.described())); }
  [[nodiscard]] std::vector<at::Tensor> eager_results() const override { return leaves_of(result_); }

  [[nodiscard]] Capturable to_capture() override {
    const auto output = std::make_shared<OutputStructure>();
    Callable::Run run = [function = function_, arguments = arguments_,
                         output](const std::vector<c10::IValue>& values) -> c10::IValue {
      std::vector<at::Tensor> tensors;
      tensors.reserve(values.size());
      for (const c10::IValue& value : values) tensors.push_back(value.toTensor());
      return output->flatten(function(arguments(tensors)));
    };
    return {.callable = with_run(function_, std::move(run)), .structure = output};
  }

 private:
  const Callable& function_;
  const CallInputs inputs_;
  Arguments arguments_;
  c10::IValue result_;
};

}  // namespace pianola::callable
