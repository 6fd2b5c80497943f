#pragma once
#include <pianola/callable/host_part.hpp>
#include <pianola/trace/host_calls.hpp>
#include <pianola/trace/op_stream.hpp>

#include <cstddef>
#include <utility>
#include <vector>

namespace pianola::callable {

/// While a part of the host runs as eager code: its calls, as far as they are those of its capture, with the numbers that it gives now.
class LiveCalls final : public trace::OpObserver {
 public:
  /// @param own  The calls of the part that are the host's own, which outlives this.
  LiveCalls(std::vector<HostPartCall> captured, const trace::HostCalls& own) : all_(std::move(captured)), own_(own) {}

  [[nodiscard]] trace::OpInterest interest() const override { return {.outputs = false}; }
  void on_op_begin(const trace::OpSpan& op) override;

  /// Afterwards: whether they were those of the capture, one for one.
  [[nodiscard]] bool are_as_captured() const noexcept { return !differ_ && next_ == all_.size(); }
  /// With the tensors of the capture.
  [[nodiscard]] const std::vector<HostPartCall>& all() const noexcept { return all_; }

 private:
  std::vector<HostPartCall> all_;
  const trace::HostCalls& own_;
  std::size_t next_ = 0;
  bool differ_ = false;
};

}  // namespace pianola::callable
