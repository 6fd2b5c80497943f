#pragma once
#include <pianola/graph/backend.hpp>
#include <pianola/graph/capture_session.hpp>
#include <pianola/graph/fork.hpp>
#include <pianola/graph/graph.hpp>

#include <cstddef>
#include <memory>
#include <optional>

namespace pianola {

struct Graph::Impl {
  explicit Impl(c10::Device wanted);

  /// Takes over what a session recorded.
  void adopt(graph::CaptureResult recorded);
  /// Before a replay.
  void check_replayable() const;
  void check_modes() const;
  void check_empty() const;
  void check_captured(const char* call) const;

  c10::Device device;
  std::unique_ptr<graph::Backend> backend;
  std::optional<graph::CaptureResult> result;  // empty: nothing is captured
  std::size_t inputs = 0;                      // that replay(sources) fills
  graph::ProcessMark process;                  // that captured
};

}  // namespace pianola
