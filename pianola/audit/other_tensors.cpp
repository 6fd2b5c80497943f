#include <pianola/audit/other_tensors.hpp>

#include <pianola/audit/words.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace pianola::auditing {
namespace {

struct Leaf {
  const c10::TensorImpl* impl = nullptr;
  bool is_gradient = false;
};

// The leaf that looks at the memory, or whose gradient lies there. What was there when the run began is not known of a leaf
// that it is the first to use.
Leaf leaf_of(const ObservedRun& run, const void* storage) {
  const OutsideMemory* outside = run.find_outside(storage);
  if (outside != nullptr && outside->leaf != nullptr) return {.impl = outside->leaf};
  const auto gradient = std::find_if(run.gradients.begin(), run.gradients.end(), [&](const GradientNote& one) {
    return one.before.identity == storage || one.after.identity == storage;
  });
  if (gradient == run.gradients.end()) return {};
  return {.impl = gradient->leaf, .is_gradient = true};
}

bool is_named(const ObservedRun& run, const std::string& name, const void* storage) {
  return !name.empty() && std::any_of(run.names.begin(), run.names.end(), [&](const NamedMemory& named) {
    return named.memory.identity == storage && named.name == name;
  });
}

bool is_alive(const ObservedRun& run, const void* storage) {
  const OutsideMemory* outside = run.find_outside(storage);
  return outside != nullptr && outside->memory.alive();
}

// What the user called it; of the operation's module alone, without open scopes, which may count the runs.
const std::string& module_of(const ObservedRuns& runs, OpAt at) {
  return runs.run(at.run).modules[runs.note(at).module];
}

}  // namespace

bool uses_other_parameter(const ObservedRuns& runs, const ArgumentPair& pair) {
  const ObservedRun& run_a = runs.run(pair.a.run);
  const ObservedRun& run_b = runs.run(pair.b.run);
  const void* const a = pair.in_a.storage;
  const void* const b = pair.in_b.storage;
  if (a == nullptr || b == nullptr || a == b || pair.in_a.made_in_step || pair.in_b.made_in_step) return false;
  if (run_a.input_at(a, pair.in_a.address) || run_b.input_at(b, pair.in_b.address)) return false;
  const bool was_replaced = is_named(run_b, run_a.name_of(a, pair.in_a.address), b);
  if (was_replaced) return false;
  const Leaf leaf_a = leaf_of(run_a, a);
  const Leaf leaf_b = leaf_of(run_b, b);
  if (leaf_a.impl != nullptr && leaf_b.impl != nullptr) {
    return leaf_a.impl != leaf_b.impl && (leaf_a.is_gradient || is_alive(run_a, a));
  }
  const std::string& module_a = module_of(runs, pair.a);
  const std::string& module_b = module_of(runs, pair.b);
  return is_alive(run_a, a) && !module_a.empty() && !module_b.empty() && module_a != module_b;
}

bool both_stay(const ObservedRuns& runs, const ArgumentPair& pair) {
  const ObservedRun& run_a = runs.run(pair.a.run);
  const ObservedRun& run_b = runs.run(pair.b.run);
  const void* const a = pair.in_a.storage;
  const void* const b = pair.in_b.storage;
  return a != b && is_named(run_b, run_a.name_of(a, pair.in_a.address), a) &&
         is_named(run_a, run_b.name_of(b, pair.in_b.address), b);
}

std::string other_tensor_words(const ObservedRuns& runs, const ArgumentPair& pair) {
  const std::string before = tensor_words(runs, pair.a, pair.in_a);
  const std::string now = tensor_words(runs, pair.b, pair.in_b);
  if (before == now) return fmt::format("another iteration uses {}, and it is another one", now);
  return fmt::format("another iteration uses {} instead of {}", now, before);
}

}  // namespace pianola::auditing
