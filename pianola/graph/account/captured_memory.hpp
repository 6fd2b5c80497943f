#pragma once
#include <pianola/core/export.hpp>
#include <pianola/core/report.hpp>
#include <pianola/graph/account/graph_memory.hpp>
#include <pianola/graph/account/process_memory.hpp>
#include <pianola/graph/memory_forecast.hpp>

#include <string>

namespace pianola {

/// What was told of a graph, what it then had, and who had what of the device beside it.
struct PIANOLA_API CapturedMemory {
  MemoryForecast forecast;
  GraphMemory graph;
  ProcessMemory process;

  [[nodiscard]] Report report() const;
  [[nodiscard]] std::string to_html() const { return graph.to_html(); }
};

}  // namespace pianola
