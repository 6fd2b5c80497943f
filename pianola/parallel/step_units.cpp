#include <pianola/parallel/step_units.hpp>

#include <pianola/parallel/cost_model.hpp>
#include <pianola/parallel/op_accesses.hpp>
#include <pianola/trace/op_info.hpp>

#include <algorithm>
#include <utility>

namespace pianola::parallel {
namespace {

// As the tape does: a view made of memory of its own is no view.
bool runs_at_replay(const OpTrace& trace, const OpRecord& op) {
  if (op.info->is_empty) return false;
  if (!op.info->is_view) return true;
  const auto results = trace.outputs(op);
  return std::any_of(results.begin(), results.end(), [](const TensorRecord& result) { return result.written; });
}

// On the CPU generators are no tensors; one address stands for all of them.
Access generator_access() {
  static const char generators = 0;
  const auto address = reinterpret_cast<std::uintptr_t>(&generators);
  return {.bytes = {address, address + 1}, .write = true, .memory = Memory::generator, .owner = &generators};
}

// An operation that another's kernel for autograd called before the kernel that computes: what it reads has not been
// written yet, nor made.
bool runs_before(const OpTrace& trace, const OpRecord& called, const OpRecord& around) {
  const auto knows_later = [&](const TensorRecord& read) {
    const auto is_newer = [&](const TensorRecord& seen) {
      return seen.storage == read.storage && (read.version > seen.version);
    };
    const auto makes = [&](const TensorRecord& result) { return result.storage == read.storage && result.written; };
    return std::ranges::any_of(trace.inputs(around), is_newer) || std::ranges::any_of(trace.outputs(around), makes);
  };
  return std::ranges::none_of(trace.inputs(called), knows_later);
}

// The operations in the order in which a tape runs them.
std::vector<std::size_t> order_of(const OpTrace& trace) {
  std::vector<std::size_t> order;
  const auto ops = trace.ops();
  for (std::size_t i = 0; i < ops.size(); ++i) {
    order.push_back(i);
    if (ops[i].around < 0) continue;
    const auto around = static_cast<std::size_t>(ops[i].around);
    if (!runs_before(trace, ops[i], ops[around])) continue;
    const auto place = std::find(order.begin(), order.end(), around);
    std::rotate(place, order.end() - 1, order.end());
  }
  return order;
}

}  // namespace

StepUnits units_of(const OpTrace& trace) {
  StepUnits step;
  StorageOwners owners;
  for (const std::size_t i : order_of(trace)) {
    const OpRecord& op = trace.ops()[i];
    std::vector<Access> accesses = accesses_of(trace, op, owners);
    if (!runs_at_replay(trace, op)) continue;
    if (draws_numbers(op)) accesses.push_back(generator_access());
    Unit unit{.name = trace.name(op), .op = i, .nodes = {static_cast<std::uint32_t>(i)}};
    unit.barrier = barrier_of(trace, op);
    unit.communicates = op.info->collective;
    unit.cost_us = unit.communicates ? collective_cost_us(accesses) : cost_us(1, accesses);
    if (unit.communicates) accesses.push_back(order_of_collectives());
    unit.accesses = std::move(accesses);
    step.units.push_back(std::move(unit));
  }
  return step;
}

}  // namespace pianola::parallel
