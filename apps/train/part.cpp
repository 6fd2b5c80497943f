#include <apps/train/part.hpp>

#include <utility>

namespace pianola::train {

Part::Call Part::eager(Callable callable) {
  return [callable = std::move(callable)](const std::vector<at::Tensor>& inputs) {
    const c10::IValue value = callable({inputs.begin(), inputs.end()});
    if (value.isTensor()) return std::vector<at::Tensor>{value.toTensor()};
    std::vector<at::Tensor> results;
    for (const c10::IValue& one : value.toTupleRef().elements()) results.push_back(one.toTensor());
    return results;
  };
}

}  // namespace pianola::train
