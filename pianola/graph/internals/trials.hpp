#pragma once
#include <c10/core/Device.h>

#include <optional>
#include <span>
#include <string>

namespace pianola::graph {

/// One internal of torch's, and how it is tried.
struct Trial {
  const char* name;
  const char* used_for;
  /// Wrong numbers would follow. Runs nothing that waits for Python's lock: the thread that waits may hold it.
  bool before_captures;
  bool of_cuda_alone;
  /// @return  What torch does instead; empty: what Pianola needs; nothing: it cannot be tried here.
  std::optional<std::string> (*run)(c10::Device device);
};

/// Of all devices, in the order in which they are best read.
[[nodiscard]] std::span<const Trial> trials();

/// For CUDA alone; see trials().
[[nodiscard]] std::optional<std::string> try_blas_workspaces(c10::Device device);
[[nodiscard]] std::optional<std::string> try_broken_capture(c10::Device device);

}  // namespace pianola::graph
