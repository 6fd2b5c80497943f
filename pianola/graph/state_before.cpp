#include <pianola/graph/state_before.hpp>

#include <ATen/autocast_mode.h>

#include <utility>

namespace pianola::graph {

void StateBefore::remember(std::vector<at::Generator> generators, bool restore, bool differentiates) {
  generators_ = std::move(generators);
  written_.differentiates(differentiates);
  restore_ = restore;
  generator_states_.tell_others_apart();
  if (restore_) generator_states_.remember(generators_);
}

std::vector<trace::OpObserver*> StateBefore::begin_eager_run() {
  if (!restore_) return {};
  written_.begin_run();
  return {&written_, &generator_states_};
}

std::vector<trace::OpObserver*> StateBefore::begin_recording(bool executes) {
  written_.save_writes(executes);
  if (restore_) {
    written_.begin_run();
    put_generators_back();
  } else {
    generator_states_.remember(generators_);
  }
  std::vector<trace::OpObserver*> observers;
  if (restore_ || executes) observers.push_back(&written_);
  if (executes) observers.push_back(&generator_states_);
  return observers;
}

void StateBefore::put_back(bool keep_gradients) {
  at::autocast::clear_cache();
  // Without `restore` the set holds what recording alone wrote, and recording counts for nothing in either case.
  keep_gradients ? written_.restore_keeping_gradients() : written_.restore();
  put_generators_back();
}

// Where others drew meanwhile, they would draw the same numbers once more.
void StateBefore::put_generators_back() { moved_generators_.merge(generator_states_.put_back()); }

}  // namespace pianola::graph
