#pragma once
#include <pianola/distributed/group_clock.hpp>
#include <pianola/distributed/statement.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/op_trace.hpp>

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace pianola::distributed {

/// Writes down how a run communicates: by c10d's operators and by functional collectives.
class StatementRecorder final : public trace::OpObserver {
 public:
  /// @param device  Of the run: the groups' backends for it are asked how far they have come.
  explicit StatementRecorder(c10::DeviceType device);

  [[nodiscard]] trace::OpInterest interest() const override { return {.outputs = false}; }
  void on_op_begin(const trace::OpSpan& op) override;

  /// c10d::ProcessGroup::getGroupName(), each once.
  [[nodiscard]] std::vector<std::string> names() const;
  /// @param trace  Of the same run, if there is one: which messages are one group of calls. Without, those of one process group that
  ///               stand behind each other are.
  [[nodiscard]] Statement statement(const OpTrace* trace) const;
  /// The run was a capture in which nothing ran: its collectives are taken off the groups' clocks. Call it once.
  /// @return  What each replay runs.
  [[nodiscard]] RunByReplays take_off_clocks() const;
  /// The groups as they are; aligned to Statement::groups.
  [[nodiscard]] const std::vector<c10::intrusive_ptr<c10d::ProcessGroup>>& groups() const noexcept { return groups_; }

 private:
  [[nodiscard]] std::uint32_t index_of(const c10::intrusive_ptr<c10d::ProcessGroup>& group);

  c10::DeviceType device_;
  std::mutex mutex_;  // of backward passes' threads
  std::vector<c10::intrusive_ptr<c10d::ProcessGroup>> groups_;
  std::vector<std::int64_t> begins_;       // what the backends had counted; -1: unknown
  std::vector<std::int64_t> not_counted_;  // by them
  Statement statement_;
  std::uint32_t collectives_ = 0;
  bool is_whole_ = true;
};

/// How many collectives a group's backend has begun; -1: it does not tell.
[[nodiscard]] std::int64_t sequence_number(c10d::ProcessGroup& group, c10::DeviceType device);

}  // namespace pianola::distributed
