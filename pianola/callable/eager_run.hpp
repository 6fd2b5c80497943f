#pragma once
#include <pianola/callable/call_watch.hpp>
#include <pianola/callable/checked_reads.hpp>
#include <pianola/callable/given_memory.hpp>
#include <pianola/callable/host_parts.hpp>
#include <pianola/callable/host_use.hpp>
#include <pianola/callable/input_holders.hpp>
#include <pianola/graph/island.hpp>
#include <pianola/graph/number_slots.hpp>
#include <pianola/trace/block_log.hpp>
#include <pianola/trace/observer_failure.hpp>
#include <pianola/trace/odd_work.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/operation_log.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pianola::callable {

/// One run of a function under observation.
class EagerRun {
 public:
  /// @param parts    Are given those of the run.
  /// @param numbers  Are given the uses of numbers among its arguments.
  /// @param islands  Are given those of the run.
  /// @param reads    The same; nullptr: replays check none.
  /// @param notes_memory  For memory().
  EagerRun(std::span<const at::Tensor> inputs, const std::function<void()>& run,
           std::shared_ptr<HostParts> parts = std::make_shared<HostParts>(),
           std::shared_ptr<graph::NumberUses> numbers = std::make_shared<graph::NumberUses>(),
           std::shared_ptr<graph::Islands> islands = std::make_shared<graph::Islands>(),
           std::shared_ptr<CheckedReads> reads = nullptr, bool notes_memory = false);

  [[nodiscard]] const CallWatch& watch() const noexcept { return watch_; }
  /// As it began.
  [[nodiscard]] const InputHolders& input_holders() const noexcept { return input_holders_; }
  [[nodiscard]] const GivenTensors& given() const noexcept { return given_; }
  [[nodiscard]] const HostUse& host() const noexcept { return host_; }
  [[nodiscard]] trace::OperationLog& log() noexcept { return log_; }
  [[nodiscard]] const trace::OperationLog& log() const noexcept { return log_; }
  [[nodiscard]] const HostParts& parts() const noexcept { return *parts_; }
  /// For each input whether it has a history, and the run sent it no gradient.
  [[nodiscard]] const std::vector<bool>& spared_inputs() const noexcept { return spared_inputs_; }
  [[nodiscard]] const graph::NumberUses& numbers() const noexcept { return *numbers_; }
  [[nodiscard]] const graph::Islands& islands() const noexcept { return *islands_; }
  /// By reads that replays check.
  [[nodiscard]] std::vector<c10::IValue> values_read() const {
    return reads_ ? reads_->values() : std::vector<c10::IValue>();
  }
  /// What it did that no graph can hold; nothing where there is no such thing.
  [[nodiscard]] const std::optional<trace::OddWork>& odd_work() const noexcept { return odd_work_; }
  /// The first work with other ranks that the graph of a whole step may hold.
  [[nodiscard]] const std::optional<trace::OddWork>& communication() const noexcept { return communication_; }
  /// The number that autograd gave its first node, or would have; see at::sequence_number.
  [[nodiscard]] std::uint64_t first_node() const noexcept { return first_node_; }
  /// The nodes of autograd that its backward passes ran and let go of.
  [[nodiscard]] const std::vector<trace::ReleasedNode>& released_nodes() const noexcept { return released_nodes_; }
  /// What it was handed out on the device; nullopt: that was not noted, or could not be.
  [[nodiscard]] std::optional<memory::StepRun> memory(c10::Device device) const;
  /// Why the two do not show the whole run; empty where they do.
  [[nodiscard]] const std::string& failure() const noexcept { return failure_; }
  /// @throws CaptureError  There is a failure(); OutOfMemoryError, where that is why.
  void check() const {
    if (diagnosis_) trace::throw_failure(*diagnosis_);
  }

  /// Whether one is going on, on this thread: whatever replays a graph now hides its operations from it.
  [[nodiscard]] static bool is_open() noexcept;

 private:
  std::uint64_t first_node_;
  InputHolders input_holders_;
  CallWatch watch_;
  GivenTensors given_;
  HostUse host_;
  trace::OperationLog log_;
  std::shared_ptr<HostParts> parts_;
  std::vector<bool> spared_inputs_;
  std::shared_ptr<graph::NumberUses> numbers_;
  std::shared_ptr<graph::Islands> islands_;
  std::shared_ptr<CheckedReads> reads_;
  std::optional<trace::OddWork> odd_work_, communication_;
  std::vector<trace::ReleasedNode> released_nodes_;
  struct Memory {
    std::vector<trace::StepBlock> blocks;  // of all devices
    std::vector<const void*> operations;
    bool sees_cpu, sees_cuda;
  };
  std::optional<Memory> memory_;
  std::optional<Diagnosis> diagnosis_;
  std::string failure_;  // in words
};

}  // namespace pianola::callable
