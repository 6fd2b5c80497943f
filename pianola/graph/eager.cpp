#include <pianola/graph/eager.hpp>

#include <pianola/graph/island.hpp>

#include <utility>

namespace pianola {

EagerPart::EagerPart(Function function, std::string name)
    : function_(std::move(function)), name_(std::move(name)), number_(graph::next_island_number()) {}

std::vector<at::Tensor> EagerPart::operator()(std::vector<at::Tensor> inputs) const {
  graph::IslandFunction island{
      .run = [function = function_](
                 const std::vector<at::Tensor>& given,
                 const graph::IslandNumbers& /*numbers*/) { return graph::IslandResult{.tensors = function(given)}; },
      .name = name_,
      .number = number_};
  return graph::call_island(std::move(island), std::move(inputs), {}).tensors;
}

EagerPart eager(EagerPart::Function function, std::string name) { return {std::move(function), std::move(name)}; }

}  // namespace pianola
