#include <pianola/graph/graph.hpp>

#include <pianola/graph/testing/device_test.hpp>

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace pianola::failing_replay_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::same;

// What the tape does when an operation of a replay throws. A CUDA kernel cannot: its assertion ends the device's context.
class FailingReplay : public testing::DeviceTest {};
INSTANTIATE_TEST_SUITE_P(On, FailingReplay, ::testing::Values("cpu"), testing::device_name);

// Nothing where it threw none.
std::optional<c10::Error> error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error;
  }
  return std::nullopt;
}

at::Tensor tokens(std::vector<std::int64_t> values) { return at::tensor(values, at::kLong); }

struct Case {
  const char* name;
  std::function<at::Tensor(const at::Tensor& table, const at::Tensor& index)> compute;
};

const std::vector<Case> kCases = {
    {"embedding", [](const at::Tensor& t, const at::Tensor& i) { return at::embedding(t, i); }},
    {"index_select", [](const at::Tensor& t, const at::Tensor& i) { return at::index_select(t, 0, i); }},
    {"index", [](const at::Tensor& t, const at::Tensor& i) { return at::index(t, {i}); }},
    {"gather", [](const at::Tensor& t, const at::Tensor& i) { return at::gather(t, 0, i.unsqueeze(1)); }},
    {"take", [](const at::Tensor& t, const at::Tensor& i) { return at::take(t, i * 4); }},
    {"scatter", [](const at::Tensor& t, const at::Tensor& i) { return t.scatter(0, i.unsqueeze(1), 7.0); }},
    {"index_add", [](const at::Tensor& t, const at::Tensor& i) { return t.index_add(0, i, t.narrow(0, 0, 3)); }},
    {"index_put", [](const at::Tensor& t, const at::Tensor& i) { return t.index_put({i}, t.narrow(0, 0, 3)); }},
    {"nll_loss", [](const at::Tensor& t, const at::Tensor& i) { return at::nll_loss(t.narrow(0, 0, 3), i); }},
};

TEST_P(FailingReplay, ThrowsWhatEagerThrowsAndTheNextOneIsRight) {
  const at::Tensor good = tokens({1, 0, 2}), other = tokens({2, 2, 1}), bad = tokens({1, 99, 0});
  for (const Case& one : kCases) {
    SCOPED_TRACE(one.name);
    const at::Tensor table = randn({6, 4});
    at::Tensor index = good.clone(), before, result, after;
    const auto step = [&] {
      before = table * 2;
      result = one.compute(table, index);
      after = result.sum() + before.sum();
    };
    Graph graph(device());
    graph.capture(step);
    const auto expected = error_of([&] { (void)one.compute(table, bad); });
    ASSERT_TRUE(expected.has_value());
    for (int round = 0; round < 4; ++round) {
      index.copy_(bad);
      const auto error = error_of([&] { graph.replay(); });
      ASSERT_TRUE(error.has_value());
      EXPECT_EQ(error->msg(), expected->msg()) << "eager's own text";
      const at::Tensor& next = round % 2 == 0 ? good : other;
      index.copy_(next);
      table.add_(0.25);
      graph.replay();
      EXPECT_TRUE(same(before, table * 2));
      EXPECT_TRUE(same(result, one.compute(table, next)));
      EXPECT_TRUE(same(after, one.compute(table, next).sum() + (table * 2).sum()));
    }
  }
}

TEST_P(FailingReplay, KeepsTheTypeAndTellsThePlace) {
  const at::Tensor table = randn({6, 4});
  at::Tensor index = tokens({1, 0}), result;
  Graph graph(device());
  graph.capture([&] {
    const at::Tensor scaled = table * 2;
    result = at::embedding(scaled, index);
  });
  index.fill_(6);
  try {
    graph.replay();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const c10::IndexError& error) {
    EXPECT_EQ(error.msg(), "index out of range in self");
    const std::string text = error.what_without_backtrace();
    EXPECT_THAT(text,
                AllOf(HasSubstr("index out of range in self (in a replay: operation 2 of the graph, aten::embedding"),
                      HasSubstr("failing_replay_test.cpp:")));
  }
  Graph untraced(device());
  index.zero_();
  untraced.capture([&] { result = at::embedding(table, index); }, {.trace = false});
  index.fill_(6);
  const auto error = error_of([&] { untraced.replay(); });
  ASSERT_TRUE(error.has_value());
  EXPECT_THAT(error->what_without_backtrace(), AllOf(HasSubstr("operation 1 of the graph, aten::embedding"),
                                                     Not(HasSubstr("failing_replay_test.cpp:"))));
}

// As eager: what comes before the operation that throws has been done, what comes after it has not.
TEST_P(FailingReplay, LeavesTheStateThatEagerLeaves) {
  struct State {
    at::Tensor table = randn({6, 4}), count = at::zeros({}), mask = at::zeros({8}), index = tokens({1, 0});
    void step() {
      count.add_(1);
      mask.copy_(at::dropout(at::ones({8}), 0.5, true));
      table.index_add_(0, index, at::ones({2, 4}));
      mask.add_(at::dropout(at::ones({8}), 0.5, true));
      count.add_(10);
    }
  } eager, graphed;
  Graph graph(device());
  graph.capture([&] { graphed.step(); });
  const auto set = [&](std::int64_t value) {
    eager.index.fill_(value);
    graphed.index.fill_(value);
  };
  for (const std::int64_t value : {2, 17, 3, 17, 17, 0}) {
    set(value);
    seed(static_cast<std::uint64_t>(value));
    const bool eager_threw = error_of([&] { eager.step(); }).has_value();
    const at::Tensor drawn = state_of(generator());
    seed(static_cast<std::uint64_t>(value));
    EXPECT_EQ(error_of([&] { graph.replay(); }).has_value(), eager_threw);
    EXPECT_TRUE(same(state_of(generator()), drawn)) << "the generator has drawn as much";
    EXPECT_TRUE(same(graphed.table, eager.table));
    EXPECT_TRUE(same(graphed.count, eager.count));
    EXPECT_TRUE(same(graphed.mask, eager.mask));
  }
}

// An operator of the user's, whose kernel reads the host's memory unseen.
at::Tensor head(const at::Tensor& x, const at::Tensor& count) {
  return x.narrow(0, 0, *count.const_data_ptr<std::int64_t>()).clone();
}
TORCH_LIBRARY(failing_replay_test, library) { library.def("head(Tensor x, Tensor count) -> Tensor"); }
TORCH_LIBRARY_IMPL(failing_replay_test, CPU, library) { library.impl("head", &head); }

TEST_P(FailingReplay, AResultOfAnotherShapeIsRefused) {
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("failing_replay_test::head", "")
                      .typed<at::Tensor(const at::Tensor&, const at::Tensor&)>();
  const at::Tensor x = randn({5});
  const at::Tensor count = tokens({3});
  at::Tensor result;
  Graph graph(device());
  graph.capture([&] { result = op.call(x, count) * 2; });
  for (int round = 0; round < 3; ++round) {
    count.fill_(5 - round * 2);
    if (round == 1) {
      graph.replay();
      EXPECT_TRUE(same(result, head(x, count) * 2)) << "as many as in the capture";
      continue;
    }
    EXPECT_THAT(testing::refusal<UsageError>("a result of another shape", [&] { graph.replay(); }),
                AllOf(HasSubstr("a result of failing_replay_test::head has the shape"),
                      HasSubstr("in a replay, and had [3] in the capture"), HasSubstr("fix:")));
  }
}

TEST_P(FailingReplay, AnAnswerThatNaNsChangeIsRefused) {
  at::Tensor x = randn({5}), result;
  Graph graph(device());
  graph.capture([&] { result = at::equal(x, x) ? x * 2 : x * 3; });
  for (int round = 0; round < 3; ++round) {
    x.copy_(randn({5}, static_cast<std::uint64_t>(round)));
    graph.replay();
    EXPECT_TRUE(same(result, x * 2));
    x[2].fill_(std::numeric_limits<float>::quiet_NaN());
    EXPECT_THAT(testing::refusal<UsageError>("another answer", [&] { graph.replay(); }),
                AllOf(HasSubstr("aten::equal has another answer in a replay than in the capture"),
                      HasSubstr("holds NaN"), HasSubstr("fix:"), HasSubstr("[PG101]")));
  }
}

}  // namespace
}  // namespace pianola::failing_replay_test
