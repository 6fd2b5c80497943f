#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <pianola/trace/testing/device_test.hpp>
#include <pianola/trace/testing/op_log.hpp>
#include <pianola/trace/testing/trace_of.hpp>

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/autograd.h>

#include <barrier>
#include <map>
#include <thread>

namespace pianola::trace::op_threads_test {
namespace {

using pianola::testing::log_of;
using pianola::testing::OpLog;
using ::testing::ElementsAre;

TEST(OpThreads, OfTheUsersOwnAreNotSeen) {
  const at::Tensor x = at::ones({2, 2});
  const OpLog log = log_of([&] {
    at::relu(x);
    std::thread([&] { at::mm(x, x); }).join();
  });
  EXPECT_THAT(log.begun, ElementsAre("aten::relu"));
}

// Attention's kernels split their work over the intra-op threads.
OpLog attention_with(int threads) {
  const int before = at::get_num_threads();
  at::set_num_threads(threads);
  const at::Tensor q = at::ones({2, 4, 64, 16}).requires_grad_();
  OpLog log = log_of([&] { torch::autograd::grad({at::scaled_dot_product_attention(q, q, q).sum()}, {q}); });
  at::set_num_threads(before);
  return log;
}

TEST(OpThreads, OfIntraOpWorkersAddNothing) {
  const OpLog alone = attention_with(1), together = attention_with(2);
  EXPECT_GT(alone.begun.size(), 4U);
  EXPECT_EQ(together.begun, alone.begun);
}

// As autograd does for the backward of each device: the state of the caller travels to its worker.
void run_on_engine_thread(const std::function<void()>& work) {
  std::thread([state = at::ThreadLocalState(), &work] {
    const at::ThreadLocalStateGuard guard(state);
    work();
  }).join();
}

TEST(OpThreads, ThatAutogradRunsForTheStepAreSeen) {
  const at::Tensor x = at::ones({2, 2});
  const OpLog log = log_of([&] { run_on_engine_thread([&] { at::mm(x, x); }); });
  EXPECT_THAT(log.begun, ElementsAre("aten::mm"));
}

TEST(OpThreads, StandApartInDepthAndScopes) {
  const at::Tensor x = at::ones({2, 2});
  const OpLog log = log_of([&] {
    run_on_engine_thread([&] {
      RECORD_USER_SCOPE("theirs");
      at::relu(x);
    });
    at::relu(x);
  });
  EXPECT_THAT(log.scopes, ElementsAre("/theirs", ""));
}

// Two workers run operations that overlap in time: `begin, begin, end, end`.
TEST(OpThreads, ThatOverlapKeepTheirOperationsApart) {
  constexpr int kRounds = 200;
  const at::Tensor a = at::ones({64, 64}), b = at::ones({64, 64});
  const OpTrace trace = pianola::testing::trace_of([&] {
    const at::ThreadLocalState state;
    std::barrier together(2);
    const auto work = [&](at::Tensor mine) {
      const at::ThreadLocalStateGuard guard(state);
      for (int i = 0; i < kRounds; ++i) {
        together.arrive_and_wait();
        mine.add_(1);
      }
    };
    std::thread first(work, a), second(work, b);
    first.join();
    second.join();
  });
  ASSERT_EQ(trace.ops().size(), 2U * kRounds);
  std::map<const void*, int> seen;
  for (const OpRecord& op : trace.ops()) {
    const TensorRecord in = trace.inputs(op)[0], out = trace.outputs(op)[0];
    ++seen[in.storage];
    ASSERT_EQ(in.storage, out.storage);
    ASSERT_FALSE(out.made_in_step) << "an in-place result is no new memory";
  }
  EXPECT_EQ(seen[storage_of(a)], kRounds);
  EXPECT_EQ(seen[storage_of(b)], kRounds);
}

}  // namespace
}  // namespace pianola::trace::op_threads_test
