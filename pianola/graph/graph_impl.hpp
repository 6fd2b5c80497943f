#pragma once
#include <pianola/core/one_call.hpp>
#include <pianola/graph/backend.hpp>
#include <pianola/graph/capture_session.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/graph/living_graphs.hpp>
#include <pianola/graph/named_numbers.hpp>
#include <pianola/graph/process_mark.hpp>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace pianola {

struct Graph::Impl {
  explicit Impl(c10::Device wanted);
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl();

  /// Warms up and records.
  void capture(const std::function<void()>& step, const CaptureOptions& options);
  /// The same in place of what is captured, which loses its executable to it.
  void update(const std::function<void()>& step, const CaptureOptions& options);
  /// Takes over what a session recorded.
  void adopt(graph::CaptureResult recorded);
  /// Of what was captured. The numbers stay.
  void drop();
  /// Before a replay.
  void check_replayable();
  void check_modes() const;
  /// For the inputs. @throws UsageError  Their number, or the shape of one, is another.
  void check_sources(std::span<const at::Tensor> sources) const;
  void keep_shapes(std::span<const at::Tensor> captured_inputs);
  /// Of a graph whose modules ran in a region of other numbers: it has to be replayed in one that computes the same.
  void check_region() const;
  void tell_region() const;
  /// What an operation throws comes out as it is; of torch's errors, with the place for context.
  void replay();
  /// The same of the operations from `first` to `last` alone.
  void replay(std::size_t first, std::size_t last);
  void check_may_capture() const;
  void check_may_update(const CaptureOptions& options) const;
  [[nodiscard]] OneCall::Scope call(const char* name) { return {calls, name, "a graph"}; }
  [[nodiscard]] OneCall::Look look(const char* name) { return {calls, name, "a graph"}; }
  /// Of what was captured.
  [[nodiscard]] GraphInfo info() const;
  [[nodiscard]] graph::AccountedGraph memory() const;
  void check_captured(const char* call) const;
  /// In which no other graph is. @param call  "suspend()".
  [[nodiscard]] std::shared_ptr<PoolState> pool_of_its_own(const char* call) const;

  c10::Device device;
  std::unique_ptr<graph::Backend> backend;
  std::optional<graph::CaptureResult> result;  // empty: nothing is captured
  graph::NamedNumbers numbers;
  std::vector<std::vector<std::int64_t>> inputs;  // the shapes of those that replay(sources) fills
  graph::ProcessMark process;                     // that captured
  std::size_t failed_operation = 0;               // of the last replay
  OneCall calls;

 private:
  template <typename Launch>
  void run(const Launch& launch);
};

}  // namespace pianola
