#include <pianola/trace/odd_operation.hpp>

#include <pianola/trace/tensors_of.hpp>

#include <fmt/format.h>

namespace pianola::trace {

OddOperation odd_tensor_in(c10::ArrayRef<c10::IValue> values) {
  OddOperation found;
  for (const c10::IValue& value : values) {
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (found.oddity != Oddity::none) return;
      const Oddity oddity = oddity_in_step(tensor);
      if (oddity != Oddity::none) found = {.oddity = oddity, .tensor = tensor};
    });
    if (found.oddity != Oddity::none) break;
  }
  return found;
}

OddOperation oddity_of_call(c10::ArrayRef<c10::IValue> inputs) {
  if (const Oddity modes = oddity_of_modes(); modes != Oddity::none) return {.oddity = modes};
  return odd_tensor_in(inputs);
}

std::string in_words(const OddOperation& odd, std::string_view op, std::string_view verb) {
  if (odd.tensor.defined()) return fmt::format("{} {} {}", op, verb, in_words(odd.oddity, odd.tensor));
  return fmt::format("{} runs {}, which is no part of a graph", op, modes_in_words(odd.oddity));
}

std::string collective_in_words(Oddity oddity, std::string_view op) {
  const char* const graph = may_be_in_a_step(oddity) ? "the graph of a part" : "a graph";
  return fmt::format("{} communicates with other ranks, which {} cannot repeat", op, graph);
}

std::string late_rank_in_words(std::string_view op) {
  return fmt::format("{} was not done after 3 s, as other ranks have not called it", op);
}

std::string span_in_words(Oddity oddity, std::string_view name) {
  if (oddity == Oddity::compiled) {
    return "the step runs code that torch.compile made, whose kernels are no operations that a graph's checks could "
           "see";
  }
  if (may_be_in_a_step(oddity)) {
    return fmt::format("{} runs, whose communication belongs to the graph of a whole step alone", name);
  }
  return fmt::format("the step runs {}, whose communication belongs to no graph", name);
}

}  // namespace pianola::trace
