#include <pianola/trace/host_numbers.hpp>

#include <pianola/torch_abi/assigned_number.hpp>
#include <pianola/trace/operation_log.hpp>
#include <pianola/trace/step_memory.hpp>
#include <pianola/trace/testing/device_test.hpp>
#include <pianola/trace/wrapped_number.hpp>

#include <ATen/ScalarOps.h>
#include <ATen/TensorIndexing.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <fmt/format.h>

#include <complex>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace pianola::trace::host_numbers_test {
namespace {

using at::indexing::Ellipsis;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Which operations are given a number of the host's, and which.
class Numbers final : public OpObserver {
 public:
  [[nodiscard]] OpInterest interest() const override { return {.host_numbers = true}; }
  void on_op_begin(const OpSpan& op) override {
    for (const c10::IValue& value : op.inputs) {
      for_each_tensor(value, [&](const at::Tensor& tensor) {
        if (op.memory->is_host_number(tensor)) seen.push_back(fmt::format("{} {}", op.info->name, words_of(tensor)));
      });
    }
  }
  std::vector<std::string> seen;

 private:
  static std::string words_of(const at::Tensor& tensor) {
    return std::visit(
        [](const auto& value) {
          if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::complex<double>>) {
            return fmt::format("{}+{}j", value.real(), value.imag());
          } else {
            return fmt::format("{}", value);
          }
        },
        number_in(tensor));
  }
};

std::vector<std::string> numbers_of(const std::function<void()>& step) {
  Numbers numbers;
  const OpStream stream({&numbers});
  step();
  return numbers.seen;
}

// What x[..., 0] = number is seen as, where numbers that are tensors are looked for.
std::vector<std::string> assigned(const std::string& number) {
  if (torch_abi::kAssignsNumbersAsTensors<>) return {"aten::fill_.Tensor " + number};
  return {};
}

class HostNumbersTest : public pianola::testing::DeviceTest {};
PIANOLA_ON_EVERY_DEVICE(HostNumbersTest);

TEST_P(HostNumbersTest, OneThatIsAssignedByIndexIsKnownWithItsValue) {
  for (const auto& [type, written] : std::vector<std::pair<at::ScalarType, std::string>>{{at::kFloat, "7"},
                                                                                         {at::kHalf, "7"},
                                                                                         {at::kDouble, "7"},
                                                                                         {at::kLong, "7"},
                                                                                         {at::kByte, "7"},
                                                                                         {at::kBool, "true"},
                                                                                         {at::kComplexFloat, "7+0j"}}) {
    at::Tensor x = at::zeros({3, 4}, at::TensorOptions(device()).dtype(type));
    EXPECT_THAT(numbers_of([&] { x.index_put_({Ellipsis, 0}, 7); }), ElementsAreArray(assigned(written))) << type;
  }
  at::Tensor x = randn({3, 4});
  const auto masked = numbers_of([&] { x.index_put_({x > 0}, 0.5); });
  if (torch_abi::kAssignsNumbersAsTensors<>) {
    EXPECT_THAT(masked, ElementsAre("aten::index_put_ 0.5"));
  }
}

TEST_P(HostNumbersTest, ATensorOfSomebodyElsesIsNone) {
  const at::Tensor kept = c10::scalar_to_tensor(2.0);  // made before the step
  float outside = 3;
  const at::Tensor x = randn({3, 4});
  EXPECT_THAT(numbers_of([&] {
                x.fill_(kept);
                x.fill_(at::from_blob(&outside, {}));
                x.fill_(at::scalar_tensor(2.0));  // an operation makes it
                x.mul_(2.0);                      // never a tensor of its own
              }),
              IsEmpty());
}

TEST_P(HostNumbersTest, WhatTheStepWritesIsNoneAnyMore) {
  const at::Tensor x = randn({3, 4});
  EXPECT_THAT(numbers_of([&] {
                const at::Tensor number = c10::scalar_to_tensor(2.0);
                x.fill_(number);
                number.add_(1);
                x.fill_(number);
              }),
              ElementsAre("aten::fill_.Tensor 2"));
}

TEST_P(HostNumbersTest, WhatAnOperationLeavesWhereOneLayIsNone) {
  at::Tensor x = randn({3, 4});
  EXPECT_THAT(numbers_of([&] {
                x.index_put_({Ellipsis, 0}, 7);                // its memory is free now
                const at::Tensor count = at::ones({}).add(1);  // and most likely this result's
                x.fill_(count);
              }),
              ElementsAreArray(assigned("7")));
}

TEST(HostNumbersTest, WithoutAnObserverThatAsksThereAreNone) {
  class Silent final : public OpObserver {
   public:
    void on_op_begin(const OpSpan& op) override {
      for (const c10::IValue& value : op.inputs) {
        for_each_tensor(value, [&](const at::Tensor& tensor) { found = found || op.memory->is_host_number(tensor); });
      }
    }
    bool found = false;
  } silent;
  at::Tensor x = at::zeros({3, 4});
  {
    const OpStream stream({&silent});
    x.index_put_({Ellipsis, 0}, 7);
  }
  EXPECT_FALSE(silent.found);
}

OperationLog log_of(const std::function<void()>& step) {
  OperationLog log;
  const OpStream stream({&log});
  step();
  return log;
}

TEST_P(HostNumbersTest, AnotherOneInTheNextCallIsTold) {
  at::Tensor x = randn({3, 4});
  const auto assigns = [&](double number) { return log_of([&] { x.index_put_({Ellipsis, 0}, number); }); };
  EXPECT_FALSE(OperationLog::difference(assigns(7), assigns(7)));
  const auto difference = OperationLog::difference(assigns(7), assigns(8));
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->rule, "PG301");
  EXPECT_EQ(difference->what,
            std::string(torch_abi::kAssignsNumbersAsTensors<> ? "aten::fill_.Tensor" : "aten::fill_.Scalar") +
                " was given 7 in one call and 8 in the next; a graph would repeat the last one for ever");
  EXPECT_THAT(difference->where, HasSubstr("operation 2"));
}

void use_nothing(const at::Tensor& /*buffer*/, std::int64_t /*stream_id*/, std::int64_t /*device_index*/) {}

TORCH_LIBRARY(pianola_streams_test, library) {
  library.def("use(Tensor buffer, int stream_id, int device_index) -> ()",
              torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(use_nothing)));
}

TEST_P(HostNumbersTest, TheNameOfAStreamIsNoNumberOfTheStep) {
  const auto use = c10::Dispatcher::singleton()
                       .findSchemaOrThrow("pianola_streams_test::use", "")
                       .typed<void(const at::Tensor&, std::int64_t, std::int64_t)>();
  const at::Tensor x = randn({3, 4});
  const auto uses = [&](std::int64_t stream, std::int64_t device) {
    return log_of([&] { use.call(x, stream, device); });
  };
  EXPECT_FALSE(OperationLog::difference(uses(0, 0), uses(99, 0))) << "a capture has streams of its own";
  EXPECT_TRUE(OperationLog::difference(uses(0, 0), uses(0, 1)));
}

}  // namespace
}  // namespace pianola::trace::host_numbers_test
