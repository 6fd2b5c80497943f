#include <pianola/profile/read/nvtx_name.hpp>

#include <pianola/profile/read/chrome_event.hpp>

#include <array>
#include <cstddef>

namespace pianola::profiling {
namespace {

constexpr std::string_view kSequence =
    ", seq = ";  // Of what autograd may differentiate: no range of a program has one.
constexpr std::array<std::string_view, 4> kSuffixes = {kSequence, ", op_id = ", ", sizes = ", ", input_op_ids = "};

}  // namespace

NvtxName parse_nvtx_name(std::string_view text) noexcept {
  std::size_t end = text.size();
  for (const std::string_view suffix : kSuffixes) {
    const std::size_t at = text.find(suffix);
    if (at != std::string_view::npos && at < end) end = at;
  }
  const std::string_view name = text.substr(0, end);
  const bool emitted = end < text.size();
  const bool numbered = text.substr(end).starts_with(kSequence);
  if (name.starts_with(kBackwardPrefix)) return {name, HostRange::Kind::backward};
  if (name.starts_with(kModulePrefix)) return {name, HostRange::Kind::module};
  if (name.starts_with("aten::") || numbered || (emitted && name.find("::") != std::string_view::npos)) {
    return {name, HostRange::Kind::operation};
  }
  return {name, HostRange::Kind::annotation};
}

}  // namespace pianola::profiling
