#pragma once
#include <pianola/graph/backend.hpp>
#include <pianola/trace/op_trace.hpp>

#include <c10/core/Storage.h>

#include <span>
#include <string>

namespace pianola::graph {

/// Saves what a launch of a captured graph writes of memory from before the capture, so that a trial can be put back. What the
/// host's part of the step writes no launch does. Copies may take half of the device's free memory.
/// @param kept  Storages that the step uses.
/// @return  Why there can be no trial; empty: all is saved.
[[nodiscard]] std::string save_for_trial(const OpTrace& trace, std::span<const c10::Storage> kept,
                                         c10::DeviceIndex device, const Backend::SaveStorage& save);

}  // namespace pianola::graph
