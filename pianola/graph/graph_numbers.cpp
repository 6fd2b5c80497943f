#include <pianola/graph/graph_numbers.hpp>

#include <pianola/graph/graph_impl.hpp>

#include <utility>

namespace pianola::graph {

void GraphNumbers::keep(std::function<bool(std::size_t operation)> wanted) const {
  impl_.backend->keep_numbers(std::move(wanted));
}

bool GraphNumbers::has(std::size_t operation, std::size_t argument) const {
  return impl_.backend->has_number(operation, argument);
}

void GraphNumbers::set(std::size_t operation, std::size_t argument, const c10::IValue& value) const {
  impl_.backend->set_number(operation, argument, value);
}

std::size_t GraphNumbers::last_called(std::size_t operation) const noexcept {
  return impl_.backend->last_called(operation);
}

bool GraphNumbers::runs_unknown_kernels() const { return impl_.backend->runs_unknown_kernels(); }

void GraphNumbers::check_replayable() const { impl_.check_replayable(); }

void GraphNumbers::copy_inputs(std::span<const at::Tensor> sources) const {
  if (!impl_.inputs.empty()) impl_.backend->copy_inputs_now(sources);
}

void GraphNumbers::repeat_recorded_call(bool repeat) const { impl_.backend->repeat_recorded_call(repeat); }

void GraphNumbers::replay(std::size_t first, std::size_t last) const {
  if (first <= last) impl_.replay(first, last);
}

}  // namespace pianola::graph
