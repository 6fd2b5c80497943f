#include <pianola/core/report_format.hpp>
#include <pianola/graph/cuda/free_memory.hpp>
#include <pianola/graph/cuda/trial_copies.hpp>

#include <fmt/format.h>

#include <cstddef>
#include <unordered_set>

namespace pianola::graph {
namespace {

std::unordered_set<const void*> written_by_a_launch(const OpTrace& trace) {
  std::unordered_set<const void*> written;
  for (const OpRecord& op : trace.ops()) {
    for (const TensorRecord& input : trace.inputs(op)) {
      const bool by_host = op.nodes == 0 && input.device.is_cpu();  // an optimizer's count of steps
      if (input.written && !input.made_in_step && !by_host) written.insert(input.storage);
    }
  }
  return written;
}

}  // namespace

std::string save_for_trial(const OpTrace& trace, std::span<const c10::Storage> kept, c10::DeviceIndex device,
                           const Backend::SaveStorage& save) {
  const std::unordered_set<const void*> written = written_by_a_launch(trace);
  const auto is_written = [&](const c10::Storage& one) { return written.contains(one.unsafeGetStorageImpl()); };
  std::size_t bytes = 0;
  for (const c10::Storage& storage : kept) {
    if (!is_written(storage)) continue;
    if (storage.device().is_cpu()) return "the step writes memory of the host";  // a copy could miss what is on its way
    bytes += storage.nbytes();
  }
  const std::size_t free = free_memory(device);
  if (bytes > free / 2) {
    return fmt::format("a trial needs a copy of what the step writes, {}, and the device has {} free",
                       format_bytes(static_cast<double>(bytes)), format_bytes(static_cast<double>(free)));
  }
  for (const c10::Storage& storage : kept) {
    if (is_written(storage)) save(storage);
  }
  return "";
}

}  // namespace pianola::graph
