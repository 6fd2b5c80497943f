#include <pianola/graph/step_parts.hpp>

#include <pianola/graph/scope_forecast.hpp>

#include <algorithm>

namespace pianola::graph {
namespace {

constexpr std::string_view kOptimizerScope = "Optimizer.step#";

// Of the innermost open scope whose name begins so: the rest of the name. Names of scopes are joined by '/'.
std::string_view name_in(std::string_view scopes, std::string_view prefix) {
  const std::size_t at = scopes.rfind(prefix);
  if (at == std::string_view::npos || (at != 0 && scopes[at - 1] != '/')) return {};
  const std::string_view rest = scopes.substr(at + prefix.size());
  return rest.substr(0, rest.find('/'));
}

std::int32_t number_among(std::string_view name, std::vector<std::string_view>& known) {
  if (name.empty()) return -1;
  const auto found = std::find(known.begin(), known.end(), name);
  if (found == known.end()) return static_cast<std::int32_t>(known.insert(known.end(), name) - known.begin());
  return static_cast<std::int32_t>(found - known.begin());
}

}  // namespace

StepParts::StepParts(const OpTrace& trace) {
  parts_.reserve(trace.ops().size());
  std::size_t end = trace.ops().size();  // of the last backward pass
  for (std::size_t i = trace.ops().size(); i-- > 0;) {
    if (!trace.ops()[i].backward) continue;
    end = i + 1;
    break;
  }
  for (const OpRecord& op : trace.ops()) {
    const OpRecord* const forward = op.backward ? trace.forward_of(op) : &op;
    const std::string_view scopes = trace.scope(forward != nullptr ? *forward : op);
    StepPart& part = parts_.emplace_back();
    part.backward = op.backward;
    part.optimizer = !name_in(trace.scope(op), kOptimizerScope).empty();
    part.ahead = parts_.size() <= end;
    part.model = number_among(name_in(scopes, kModelScope), models_);
    part.layer = number_among(name_in(scopes, kLayerScope), layers_);
    has_optimizer_ = has_optimizer_ || part.optimizer;
  }
}

}  // namespace pianola::graph
