#include <pianola/graph/generator_states.hpp>

#include <pianola/trace/op_info.hpp>
#include <pianola/trace/quiet_scope.hpp>

#include <algorithm>
#include <mutex>
#include <utility>

namespace pianola::graph {

void GeneratorStates::remember(const std::vector<at::Generator>& generators) {
  for (const at::Generator& generator : generators) remember(generator);
}

void GeneratorStates::remember(at::Generator generator) {  // by value: a handle, whose lock is not const
  const auto same = [&](const auto& known) { return known.first == generator; };
  if (std::any_of(states_.begin(), states_.end(), same)) return;
  const trace::QuietScope quiet;
  const std::lock_guard lock(generator.mutex());
  at::Tensor state = generator.get_state();
  states_.emplace_back(std::move(generator), std::move(state));
}

void GeneratorStates::on_op_begin(const trace::OpSpan& op) {
  if (!op.info->seeded) return;
  for (const c10::IValue& value : op.inputs) {
    if (value.isGenerator() && value.toGenerator().defined()) remember(value.toGenerator());
  }
}

void GeneratorStates::restore() const {
  const trace::QuietScope quiet;
  for (auto [generator, state] : states_) {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

}  // namespace pianola::graph
