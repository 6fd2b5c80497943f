#include <pianola/trace/nondeterministic.hpp>

#include <pianola/parallel/step_units.hpp>
#include <pianola/trace/testing/trace_of.hpp>

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/index_put.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scatter.h>
#include <ATen/ops/scatter_add.h>
#include <ATen/ops/zeros.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace pianola::trace::nondeterministic_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::trace_of;

// Tensors without memory take the part of a GPU's, on which the answers depend.
const c10::Device kNotTheCpu(c10::kMeta);

at::Tensor floats() { return at::ones({4, 4}, kNotTheCpu); }
at::Tensor integers() { return at::zeros({4, 4}, at::TensorOptions(kNotTheCpu).dtype(at::kLong)); }

std::vector<std::string> of(const std::function<void()>& step) { return nondeterministic_operators(trace_of(step)); }

TEST(NondeterministicTable, NamesOnlyOperatorsThatTorchHas) {
  std::set<std::string> operators;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    operators.insert(name.name);
    operators.insert(name.name + "." + name.overload_name);
  }
  ASSERT_GE(nondeterministic_names().size(), 50U);
  for (const std::string_view name : nondeterministic_names())
    EXPECT_TRUE(operators.contains(std::string(name))) << name;
}

// A recording descends through composites, so that it would never ask for them.
TEST(NondeterministicTable, NamesNoOperatorThatATraceNeverHolds) {
  std::set<std::string> recorded;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto handle = c10::Dispatcher::singleton().findSchema(name);
    if (!handle || trace::OpInfo(*handle).transparent_now({})) continue;
    recorded.insert(name.name);
    recorded.insert(name.name + "." + name.overload_name);
  }
  for (const std::string_view name : nondeterministic_names())
    EXPECT_TRUE(recorded.contains(std::string(name))) << name;
}

TEST(NondeterministicTable, HasEachNameOnce) {
  const auto names = nondeterministic_names();
  EXPECT_EQ(std::set<std::string_view>(names.begin(), names.end()).size(), names.size());
}

TEST(NondeterministicOperators, AreNamedOnceInTheOrderOfTheStep) {
  const at::Tensor x = floats(), i = integers();
  EXPECT_THAT(of([&] {
                at::cumsum(x, 0);
                at::mm(x, x);
                at::scatter_add(x, 0, i, x);
                at::cumsum(x, 1);
              }),
              ElementsAre("aten::cumsum", "aten::scatter_add"));
}

TEST(NondeterministicOperators, AreNotThoseThatAddIntegers) {
  EXPECT_THAT(of([] { at::cumsum(integers(), 0); }), IsEmpty());
}

TEST(NondeterministicOperators, AreToldByTheirOverload) {
  const at::Tensor x = floats(), i = integers();
  EXPECT_THAT(of([&] { at::scatter(x, 0, i, 1.0); }), IsEmpty()) << "whoever wins, the value is the same";
  EXPECT_THAT(of([&] { at::scatter(x, 0, i, x); }), ElementsAre("aten::scatter.src"));
}

TEST(NondeterministicOperators, AreToldByTheirArguments) {
  const at::Tensor x = floats(), i = integers().select(0, 0);
  EXPECT_THAT(of([&] { at::index_put(x, {i}, x, /*accumulate=*/false); }), ElementsAre("aten::index_put"));
  EXPECT_THAT(of([&] { at::index_put(x, {i}, x, /*accumulate=*/true); }), IsEmpty()) << "a GPU sorts the indices first";
}

TEST(NondeterministicOperators, AreFewerOnTheCpu) {
  const at::Tensor x = at::ones({4, 4}), i = at::zeros({4}, at::kLong);
  EXPECT_THAT(of([&] { at::cumsum(x, 0); }), IsEmpty());
  EXPECT_THAT(of([&] { at::index_put(x, {i}, x, /*accumulate=*/false); }), IsEmpty());
  EXPECT_THAT(of([&] { at::index_put(x, {i}, x, /*accumulate=*/true); }), ElementsAre("aten::index_put"));
}

TEST(NondeterministicOperators, AreNoneWhereTorchIsToldToAvoidThem) {
  const at::Tensor x = floats();
  const OpTrace trace = trace_of([&] { at::cumsum(x, 0); });
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  const auto strict = nondeterministic_operators(trace);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  const auto warned = nondeterministic_operators(trace);
  at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
  EXPECT_THAT(strict, IsEmpty());
  EXPECT_THAT(warned, ElementsAre("aten::cumsum")) << "it only warns, and runs";
}

}  // namespace
}  // namespace pianola::trace::nondeterministic_test
