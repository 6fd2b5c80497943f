#include <pianola/profile/decide/range_parts.hpp>

namespace pianola::profiling {

std::optional<Part> part_by_ranges(const Timeline& timeline, std::span<const HostRange* const> open) {
  std::optional<Part> part;
  for (const HostRange* range : open) {
    const std::string_view name = timeline.name(range->name);
    if (name.starts_with("Optimizer.") || name.starts_with("aten::_fused_adam") ||
        name.starts_with("aten::_fused_sgd")) {
      return Part::optimizer;
    }
    if (range->kind == HostRange::Kind::backward) part = Part::backward;
    if (range->kind == HostRange::Kind::module && !part) part = Part::forward;
  }
  return part;
}

std::string_view kind_of_module(const Timeline& timeline, const HostRange& range) {
  if (range.kind != HostRange::Kind::module) return {};
  std::string_view name = timeline.name(range.name);
  if (!name.starts_with(kModulePrefix)) return {};
  name.remove_prefix(kModulePrefix.size());
  const std::size_t end = name.find_last_not_of("0123456789");
  return end != std::string_view::npos && name[end] == '_' ? name.substr(0, end) : name;
}

}  // namespace pianola::profiling
