#pragma once
#include <pianola/core/error.hpp>
#include <pianola/graph/offence.hpp>
#include <pianola/trace/op_stream.hpp>

#include <c10/core/Device.h>

#include <cstddef>
#include <optional>

namespace pianola::callable {

/// Sees what the operations of one run need the host for, none of which a graph can do.
class HostUse final : public trace::OpObserver {
 public:
  void on_op_begin(const trace::OpSpan& op) override;
  void on_op_end(const trace::OpSpan& op) override;

  /// The first operation that reads a value of the device on the host, or waits for a copy between the two.
  /// @param late_ones_count  So do reads that the run itself might have made later (trace::LateRead).
  [[nodiscard]] std::optional<Diagnosis> reads(c10::Device device, bool late_ones_count) const;
  /// The first one that draws from the CPU's generator while the run computes on another device.
  [[nodiscard]] std::optional<Diagnosis> draws(c10::Device device) const;
  /// Whether it copied pageable memory of the host to a GPU, of which a graph can keep a copy.
  [[nodiscard]] bool copies_from_host() const noexcept { return copies_from_host_; }

 private:
  std::size_t operations_ = 0;
  bool copies_from_host_ = false;
  struct Reads {
    std::optional<graph::OffendingOp> of_cpu = {};  // of tensors of the CPU, which is the device of the tape
    std::optional<graph::OffendingOp> of_others = {};
  };
  Reads reads_;
  Reads late_reads_;
  std::optional<graph::OffendingOp> copy_;
  std::optional<graph::OffendingOp> draw_;
};

}  // namespace pianola::callable
