#include <pianola/distributed/statement_recorder.hpp>

#include <ATen/ops/ones.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

// torch 2.15 deprecates names of collectives that 2.11 has no other ones for.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace pianola::distributed::statement_recorder_test {
namespace {

using ::testing::ElementsAre;

struct Done final : c10d::Work {
  bool isCompleted() override { return true; }
  bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
};

/// Communicates with nobody, and counts.
class Silent final : public c10d::Backend {
 public:
  Silent(int rank, int size) : Backend(rank, size) {}
  const std::string getBackendName() const override { return "silent"; }  // NOLINT(readability-const-return-type)
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return count_; }

  using Work = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  Work allreduce(Tensors& /*t*/, const c10d::AllreduceOptions& /*o*/) override { return counted(); }
  Work broadcast(Tensors& /*t*/, const c10d::BroadcastOptions& /*o*/) override { return counted(); }
  Work _allgather_base(at::Tensor& /*out*/, at::Tensor& /*in*/, const c10d::AllgatherOptions& /*o*/) override {
    return counted();
  }
  Work alltoall_base(at::Tensor& /*out*/, at::Tensor& /*in*/, std::vector<std::int64_t>& /*out_split*/,
                     std::vector<std::int64_t>& /*in_split*/, const c10d::AllToAllOptions& /*o*/) override {
    return counted();
  }
  Work send(Tensors& /*t*/, int /*to*/, int /*tag*/) override { return c10::make_intrusive<Done>(); }
  Work recv(Tensors& /*t*/, int /*from*/, int /*tag*/) override { return c10::make_intrusive<Done>(); }

 private:
  Work counted() {
    ++count_;
    return c10::make_intrusive<Done>();
  }
  std::uint64_t count_ = 0;
};

c10::intrusive_ptr<c10d::ProcessGroup> group(const std::string& name, int rank, int size) {
  auto made = c10::make_intrusive<c10d::ProcessGroup>(rank, size);
  made->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::CUSTOM, c10::make_intrusive<Silent>(rank, size));
  made->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  made->setGroupName(name);
  return made;
}

Statement record(const std::function<void()>& step) {
  StatementRecorder recorder(c10::kCPU);
  {
    const trace::OpStream stream({&recorder});
    step();
  }
  return recorder.statement(nullptr);
}

std::string words(const Call& call) {
  std::string text = std::string(name_of(call.kind)) + " " + call.agreed;
  const auto add = [&](const char* word, const std::vector<std::int64_t>& lengths) {
    text += word;
    for (const std::int64_t length : lengths) text += " " + std::to_string(length);
  };
  add("; gives", call.gives);
  add("; takes", call.takes);
  if (call.peer >= 0) text += "; peer " + std::to_string(call.peer);
  if (call.with_next) text += "; with next";
  return text;
}

TEST(StatementRecorderTest, WritesDownWhatEachCallMoves) {
  const auto of_four = group("tp", 1, 4);
  at::Tensor eight = at::ones({8}), two = at::ones({2}), rows = at::ones({6, 2});
  const Statement statement = record([&] {
    std::vector<at::Tensor> tensors = {eight, two};
    c10d::AllreduceOptions most;
    most.reduceOp = c10d::ReduceOp::MAX;
    of_four->allreduce(tensors, most);
    c10d::BroadcastOptions from_two;
    from_two.rootRank = 2;
    tensors = {two};
    of_four->broadcast(tensors, from_two);
    of_four->_allgather_base(eight, two, {});
    std::vector<std::int64_t> given = {1, 2, 3, 0}, taken = {2, 2, 1, 1};
    at::Tensor result = at::ones({6, 2});
    of_four->alltoall_base(result, rows, taken, given, {});
  });
  std::vector<std::string> calls;
  for (const Call& call : statement.calls) calls.push_back(words(call));
  EXPECT_THAT(calls,
              ElementsAre("all_reduce Float, max; gives 10; takes 10", "broadcast Float, root 2; gives 2; takes 2",
                          "all_gather Float; gives 2; takes 2", "all_to_all Float; gives 2 4 6 0; takes 4 4 2 2"));
  EXPECT_EQ(statement.name, "rank 1");
}

TEST(StatementRecorderTest, MessagesBehindEachOtherAreOneGroupWhereNothingTellsThemApart) {
  const auto pair = group("pp", 0, 2);
  const Statement statement = record([&] {
    std::vector<at::Tensor> tensors = {at::ones({3})};
    pair->send(tensors, 1, 0);
    pair->recv(tensors, 1, 0);
    pair->allreduce(tensors);
    pair->recv(tensors, 1, 0);
  });
  std::vector<std::string> calls;
  for (const Call& call : statement.calls) calls.push_back(words(call));
  EXPECT_THAT(calls, ElementsAre("send Float; gives 3; takes; peer 1; with next", "recv Float; gives; takes 3; peer 1",
                                 "all_reduce Float, sum; gives 3; takes 3", "recv Float; gives; takes 3; peer 1"));
}

TEST(StatementRecorderTest, AMomentCountsWhatHasRun) {
  const auto pair = group("clock", 0, 2);
  std::vector<at::Tensor> tensors = {at::ones({3})};
  const auto step = [&] {
    pair->allreduce(tensors);
    pair->allreduce(tensors);
  };
  const auto moment = [&] { return record(step).groups.at(0).moment; };
  EXPECT_EQ(moment(), "0");
  EXPECT_EQ(moment(), "2");
  RunByReplays replays;
  {
    StatementRecorder captured(c10::kCPU);
    const trace::OpStream stream({&captured});
    step();
    replays = captured.take_off_clocks();
  }
  EXPECT_EQ(moment(), "4") << "what was captured has not run";
  replays.count();
  EXPECT_EQ(moment(), "8") << "one replay, and the run before";
  GroupClock::of_this_process().forget("clock");
  EXPECT_EQ(moment(), "10") << "by the backend alone";
}

}  // namespace
}  // namespace pianola::distributed::statement_recorder_test
