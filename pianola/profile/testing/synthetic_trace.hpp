#pragma once
#include <cstddef>
#include <filesystem>

namespace pianola::profiling {

/// Writes a trace of a training loop as torch.profiler does, of at least `events` events and about 250 bytes each:
/// operations, launches and kernels, arrows between them, functions of Python, an annotation every 1000 events.
void write_synthetic_trace(const std::filesystem::path& file, std::size_t events);

/// What write_synthetic_trace() put into a trace.
struct SyntheticCounts {
  std::size_t kernels = 0, calls = 0, operations = 0, annotations = 0;
};
[[nodiscard]] SyntheticCounts synthetic_counts(std::size_t events);

}  // namespace pianola::profiling
