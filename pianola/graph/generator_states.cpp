#include <pianola/graph/generator_states.hpp>

#include <pianola/trace/quiet_scope.hpp>

#include <mutex>

namespace pianola::graph {

GeneratorStates::GeneratorStates(const std::vector<at::Generator>& generators) {
  const trace::QuietScope quiet;
  for (at::Generator generator : generators) {  // by value: a handle, whose lock is not const
    const std::lock_guard lock(generator.mutex());
    states_.emplace_back(generator, generator.get_state());
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
