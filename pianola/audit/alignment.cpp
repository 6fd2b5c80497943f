#include <pianola/audit/alignment.hpp>

#include <algorithm>

namespace pianola::auditing {
namespace {

bool same_operator(const OpRecord& a, const OpRecord& b) {
  return a.info == b.info && a.backward == b.backward && a.inputs == b.inputs && a.outputs == b.outputs;
}

bool same_strides(const OpTrace& a, const TensorRecord& in_a, const OpTrace& b, const TensorRecord& in_b) {
  const auto sizes = a.sizes(in_a);
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return true;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] != 1 && a.strides(in_a)[i] != b.strides(in_b)[i]) return false;
  }
  return true;
}

// Strides count for what comes from outside; of what the step makes they follow from that, or from numbers.
std::optional<FirstChange> change_in(const OpTrace& a, const OpRecord& in_a, const OpTrace& b, const OpRecord& in_b) {
  FirstChange change;
  const auto look = [&](const auto& of_a, const auto& of_b) {
    for (change.tensor = 0; change.tensor < of_a.size(); ++change.tensor) {
      const TensorRecord& first = of_a[change.tensor];
      const TensorRecord& second = of_b[change.tensor];
      change.kind = change_between(a, first, b, second);
      const bool from_outside = !change.result && !first.made_in_step && !second.made_in_step;
      if (change.kind == TensorChange::none || (change.kind == TensorChange::strides && !from_outside)) continue;
      return true;
    }
    return false;
  };
  if (look(a.inputs(in_a), b.inputs(in_b))) return change;
  change.result = true;
  if (look(a.outputs(in_a), b.outputs(in_b))) return change;
  return std::nullopt;
}

}  // namespace

TensorChange change_between(const OpTrace& a, const TensorRecord& in_a, const OpTrace& b, const TensorRecord& in_b) {
  if (in_a.device != in_b.device) return TensorChange::device;
  if (!std::ranges::equal(a.sizes(in_a), b.sizes(in_b))) return TensorChange::shape;
  if (in_a.dtype != in_b.dtype) return TensorChange::dtype;
  return same_strides(a, in_a, b, in_b) ? TensorChange::none : TensorChange::strides;
}

Alignment align(const OpTrace& a, const OpTrace& b) {
  Alignment alignment;
  const auto ops_a = a.ops();
  const auto ops_b = b.ops();
  const std::size_t both = std::min(ops_a.size(), ops_b.size());
  while (alignment.ops < both && same_operator(ops_a[alignment.ops], ops_b[alignment.ops])) {
    if (!alignment.first_change) {
      alignment.first_change = change_in(a, ops_a[alignment.ops], b, ops_b[alignment.ops]);
      if (alignment.first_change) alignment.first_change->op = alignment.ops;
    }
    ++alignment.ops;
  }
  alignment.complete = alignment.ops == ops_a.size() && alignment.ops == ops_b.size();
  return alignment;
}

}  // namespace pianola::auditing
