#include <pianola/trace/trace_recorder.hpp>

#include <pianola/trace/testing/device_test.hpp>
#include <pianola/trace/testing/trace_of.hpp>

#include <ATen/ops/_nested_tensor_from_tensor_list.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <source_location>

namespace pianola::trace_recorder_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::op_named;
using testing::trace_of;

// A clock that the test moves, in place of a generator.
TEST(TraceRecorderRandomNumbers, AreTheDistanceThatTheGeneratorMovedDuringTheOperation) {
  const at::Tensor x = at::ones({4});
  std::vector<std::uint64_t> readings = {7, 12};
  std::size_t asked = 0;
  const OpTrace trace = trace_of(
      [&] {
        at::relu(x);
        at::dropout(x, 0.5, /*train=*/true);
      },
      {.random_position = [&] { return readings.at(asked++); }});
  EXPECT_EQ(op_named(trace, "aten::relu").random_numbers, 0U);
  EXPECT_EQ(asked, 2U) << "only where an operation may draw";
  const auto drawn = [&](const OpRecord& op) { return op.random_numbers; };
  std::uint64_t total = 0;
  for (const OpRecord& op : trace.ops()) total += drawn(op);
  EXPECT_EQ(total, 5U);
}

class RandomNumbers : public testing::DeviceTest {
 protected:
  // 1 for each change of the generator's state, as on the tape.
  [[nodiscard]] OpTrace watch(const std::function<void()>& step) {
    last_ = state_of(generator());
    moves_ = 0;
    return trace_of(step, {.random_position = [this] {
                      const at::DisableRecordFunctionGuard quiet;
                      const at::Tensor now = state_of(generator());
                      if (!now.equal(last_)) ++moves_;
                      last_ = now;
                      return moves_;
                    }});
  }
  static std::uint64_t total(const OpTrace& trace) {
    std::uint64_t all = 0;
    for (const OpRecord& op : trace.ops()) all += op.random_numbers;
    return all;
  }

 private:
  at::Tensor last_;
  std::uint64_t moves_ = 0;
};
PIANOLA_ON_EVERY_DEVICE(RandomNumbers);

TEST_P(RandomNumbers, AreDrawnByDropoutInTrainingOnly) {
  const at::Tensor x = randn({8, 8});
  EXPECT_EQ(total(watch([&] { at::dropout(x, 0.5, true); })), 1U);
  EXPECT_EQ(total(watch([&] { at::dropout(x, 0.5, false); })), 0U);
}

// Attention is tagged as drawing in any case.
TEST_P(RandomNumbers, AreNotDrawnByAttentionWithoutDropout) {
  const at::Tensor q = randn({1, 2, 8, 8});
  EXPECT_EQ(total(watch([&] { at::scaled_dot_product_attention(q, q, q); })), 0U);
  EXPECT_GE(total(watch([&] { at::scaled_dot_product_attention(q, q, q, {}, 0.5); })), 1U);
}

TEST(TraceRecorderBlocks, BelongToTheOperationThatAllocatedThem) {
  std::vector<ByteSpan> pending, given;
  TraceRecorder recorder({.new_blocks = [&]() -> std::span<const ByteSpan> {
    given = std::exchange(pending, {});
    return given;
  }});
  struct Allocator : trace::OpObserver {
    void on_op_begin(const trace::OpSpan& op) override {
      if (op.info->name == "aten::mm") pending = {{1, 9}, {32, 64}};
    }
    explicit Allocator(std::vector<ByteSpan>& blocks) : pending(blocks) {}
    std::vector<ByteSpan>& pending;
  } allocator(pending);
  const at::Tensor x = at::ones({2, 2});
  {
    const trace::OpStream stream({&recorder, &allocator});
    at::mm(x, x);
    pending = {{128, 256}};  // between two operations: nobody's
    at::relu(x);
  }
  const OpTrace trace = recorder.take();
  EXPECT_THAT(trace.blocks(op_named(trace, "aten::mm")), ElementsAre(ByteSpan{1, 9}, ByteSpan{32, 64}));
  EXPECT_THAT(trace.blocks(op_named(trace, "aten::relu")), ::testing::IsEmpty());
}

// Nested tensors, which are asked for their shape in vain, the stream keeps from the recorder.
TEST(TraceRecorderTensors, WithoutStorageHaveNoMemory) {
  const at::Tensor sparse = at::ones({2, 3}).to_sparse();
  const at::Tensor nested = at::_nested_tensor_from_tensor_list({at::ones({2, 3}), at::ones({4, 3})});
  TraceRecorder recorder;
  {
    const trace::OpStream stream({&recorder});
    at::neg(nested);
    sparse.clone();
    at::relu(at::ones({2}));
  }
  const OpTrace trace = recorder.take();
  EXPECT_EQ(trace.inputs(op_named(trace, "aten::clone"))[0].storage, nullptr);
  EXPECT_NE(trace.inputs(op_named(trace, "aten::relu"))[0].storage, nullptr);
  EXPECT_THROW((void)op_named(trace, "aten::neg"), std::logic_error);
}

TEST(TraceRecorderNodes, BelongToTheOperationThatAddedThem) {
  const std::array<int, 4> handles{};  // their addresses serve as nodes
  std::vector<const void*> pending, given;
  TraceRecorder recorder({.new_nodes = [&]() -> std::span<const void* const> {
    given = std::exchange(pending, {});
    return given;
  }});
  struct Adder : trace::OpObserver {
    void on_op_begin(const trace::OpSpan& op) override { add(op); }
    std::function<void(const trace::OpSpan&)> add;
  } adder;
  adder.add = [&](const trace::OpSpan& op) {
    if (op.info->name == "aten::mm") pending = {&handles[0], &handles[1]};
    if (op.info->name == "aten::relu") pending = {&handles[2]};
  };
  const at::Tensor x = at::ones({2, 2});
  {
    const trace::OpStream stream({&recorder, &adder});
    at::mm(x, x);
    pending = {&handles[3]};  // a raw call of the user's between two operations
    at::relu(x);
  }
  EXPECT_EQ(recorder.foreign_nodes(), 1U);
  const OpTrace trace = recorder.take();
  EXPECT_THAT(trace.nodes(op_named(trace, "aten::mm")), ElementsAre(&handles[0], &handles[1]));
  EXPECT_THAT(trace.nodes(op_named(trace, "aten::relu")), ElementsAre(&handles[2]));
}

// mul_ clones what it overwrites: the clone's node comes first, and it is the clone's own.
TEST(TraceRecorderNodes, OfAnOperationThatAnotherCallsAreItsOwn) {
  const std::array<int, 3> handles{};
  std::vector<const void*> pending, given;
  TraceRecorder recorder({.new_nodes = [&]() -> std::span<const void* const> {
    given = std::exchange(pending, {});
    return given;
  }});
  struct Adder : trace::OpObserver {
    void on_op_begin(const trace::OpSpan& op) override { begin(op); }
    void on_op_end(const trace::OpSpan& op) override { end(op); }
    std::function<void(const trace::OpSpan&)> begin, end;
  } adder;
  adder.begin = [&](const trace::OpSpan& op) {
    if (op.info->name == "aten::mul_.Tensor") pending = {&handles[0]};
    if (op.info->name == "aten::clone") pending = {&handles[1]};
  };
  adder.end = [&](const trace::OpSpan& op) {
    if (op.info->name == "aten::clone") pending = {&handles[2]};
  };
  at::Tensor x = at::ones({2, 2}).requires_grad_() * 2;
  const at::Tensor factor = at::ones({2, 2}).requires_grad_();
  {
    const trace::OpStream stream({&recorder, &adder});
    x.mul_(factor);
  }
  EXPECT_EQ(recorder.foreign_nodes(), 0U);
  const OpTrace trace = recorder.take();
  EXPECT_THAT(trace.nodes(op_named(trace, "aten::mul_.Tensor")), ElementsAre(&handles[0], &handles[2]));
  EXPECT_THAT(trace.nodes(op_named(trace, "aten::clone")), ElementsAre(&handles[1]));
  EXPECT_EQ(op_named(trace, "aten::clone").around, 0);
  EXPECT_FALSE(op_named(trace, "aten::mul_.Tensor").opaque || op_named(trace, "aten::clone").opaque);
}

TEST(TraceRecorder, KeepsAnOperationThatThrewWithoutResults) {
  const at::Tensor x = at::ones({2, 2}), wrong = at::ones({3, 3});
  const OpTrace trace = trace_of([&] {
    EXPECT_THROW(at::mm(x, wrong), c10::Error);
    at::relu(x);
  });
  ASSERT_THAT(testing::names_of(trace), ElementsAre("aten::mm", "aten::relu"));
  EXPECT_EQ(trace.inputs(trace.ops()[0]).size(), 2U);
  EXPECT_EQ(trace.outputs(trace.ops()[0]).size(), 0U);
  EXPECT_EQ(trace.outputs(trace.ops()[1]).size(), 1U);
}

// ---- places ----

std::string line(int offset, std::source_location here = std::source_location::current()) {
  return "trace_recorder_test.cpp:" + std::to_string(static_cast<int>(here.line()) + offset);
}

std::string relu_line, add_line;

__attribute__((noinline)) at::Tensor a_layer(const at::Tensor& x) {
  relu_line = line(1);
  const at::Tensor active = at::relu(x);
  at::ones_like(x);  // carries the sequence number of the next operation, which makes the node
  add_line = line(1);
  return at::add(active, x);
}

class Places : public testing::DeviceTest {};
PIANOLA_ON_EVERY_DEVICE(Places);

TEST_P(Places, AreTheUsersFunctionAndLine) {
  const at::Tensor x = randn({2, 2});
  const OpTrace trace = trace_of([&] { a_layer(x); }, {.call_sites = true});
  EXPECT_THAT(trace.place(op_named(trace, "aten::relu")), HasSubstr("a_layer at " + relu_line));
  EXPECT_THAT(trace.place(op_named(trace, "aten::add.Tensor")), HasSubstr("a_layer at " + add_line));
}

TEST_P(Places, OfABackwardOperationAreThoseOfItsForward) {
  const at::Tensor x = randn({2, 2}).requires_grad_();
  const OpTrace trace = trace_of([&] { torch::autograd::grad({a_layer(x).sum()}, {x}); }, {.call_sites = true});
  const OpRecord& backward = op_named(trace, "aten::threshold_backward");
  ASSERT_TRUE(backward.backward);
  EXPECT_THAT(trace.place(backward), HasSubstr("a_layer at " + relu_line));
}

TEST_P(Places, AreEmptyWhereTheyWereNotRecorded) {
  const at::Tensor x = randn({2, 2});
  const OpTrace trace = trace_of([&] { a_layer(x); });
  EXPECT_EQ(trace.place(trace.ops()[0]), "");
}

}  // namespace
}  // namespace pianola::trace_recorder_test
