#pragma once
#include <pianola/profile/timeline.hpp>

#include <string_view>

namespace pianola::profiling {

/// What the name of an NVTX range says.
struct NvtxName {
  std::string_view name;  ///< Part of the text.
  HostRange::Kind kind = HostRange::Kind::annotation;
};

/// torch.autograd.profiler.emit_nvtx makes ranges of torch's own: "aten::addmm, seq = 12, op_id = 40, sizes = [[8, 4]]" is
/// the operation "aten::addmm". All other ranges are annotations.
///
/// Source:   torch 2.11, torch/csrc/profiler/util.cpp, getNvtxStr.
[[nodiscard]] NvtxName parse_nvtx_name(std::string_view text) noexcept;

}  // namespace pianola::profiling
