#include <pianola/trace/op_info.hpp>

#include <pianola/trace/testing/device_test.hpp>
#include <pianola/trace/testing/trace_of.hpp>

#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include <set>

namespace pianola::trace::op_info_test {
namespace {

using pianola::testing::op_info;
using ::testing::ElementsAre;

TEST(OpInfo, LooksUpNoNameThatTorchDoesNotHave) {
  std::set<std::string> operators;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) operators.insert(name.name);
  ASSERT_GE(names_in_tables().size(), 20U);
  for (const std::string_view name : names_in_tables()) EXPECT_TRUE(operators.contains(std::string(name))) << name;
}

// A recording descends through composites, so that it would never ask for them.
TEST(OpInfo, LooksUpNoNameOfWhichAllOverloadsAreComposites) {
  std::set<std::string> recorded;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto handle = c10::Dispatcher::singleton().findSchema(name);
    if (handle && !OpInfo(*handle).transparent_now({})) recorded.insert(name.name);
  }
  for (const std::string_view name : names_in_tables()) EXPECT_TRUE(recorded.contains(std::string(name))) << name;
}

TEST(OpInfo, SeesThroughCompositesAndThroughNothingElse) {
  for (const char* name :
       {"aten::layer_norm", "aten::dropout", "aten::scaled_dot_product_attention", "aten::matmul",
        "aten::cross_entropy_loss", "aten::batch_norm", "aten::conv2d", "aten::item", "aten::reshape"}) {
    EXPECT_TRUE(op_info(name).transparent_now({})) << name;
  }
  for (const char* name :
       {"aten::native_layer_norm", "aten::native_dropout", "aten::mm", "aten::_log_softmax", "aten::view",
        "aten::native_batch_norm", "aten::convolution", "aten::_local_scalar_dense", "aten::gelu"}) {
    EXPECT_FALSE(op_info(name).transparent_now({})) << name;
  }
}

TEST(OpInfo, SeesThroughPoolingOfOneDimensionWhereSomebodyWantsItsGradient) {
  const OpInfo pool = op_info("aten::max_pool1d");
  const at::Tensor given = at::randn({2, 3, 8});
  EXPECT_FALSE(pool.transparent_now(std::vector<c10::IValue>{given}));
  given.requires_grad_();
  EXPECT_TRUE(pool.transparent_now(std::vector<c10::IValue>{given}));
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(pool.transparent_now(std::vector<c10::IValue>{given}));
}

TEST(OpInfo, SeesThroughWhatAutocastWrapsWhileItIsOnForTheDeviceOfTheTensors) {
  const OpInfo mm = op_info("aten::mm"), add = op_info("aten::add.Tensor");
  const std::vector<c10::IValue> inputs = {at::randn({2, 2}), at::randn({2, 2})};
  EXPECT_FALSE(mm.transparent_now(inputs)) << "autocast is off";

  at::autocast::set_autocast_enabled(at::kCPU, true);
  EXPECT_TRUE(mm.transparent_now(inputs));
  EXPECT_FALSE(add.transparent_now(inputs)) << "autocast leaves additions alone";
  {
    const c10::impl::ExcludeDispatchKeyGuard inside_the_wrapper(c10::autocast_dispatch_keyset);
    EXPECT_FALSE(mm.transparent_now(inputs)) << "the call that the wrapper makes";
  }
  at::autocast::set_autocast_enabled(at::kCPU, false);

  at::autocast::set_autocast_enabled(at::kCUDA, true);
  EXPECT_FALSE(mm.transparent_now(inputs)) << "CUDA's autocast does not wrap a call on CPU tensors";
  at::autocast::set_autocast_enabled(at::kCUDA, false);
}

TEST(OpInfo, TellsViewsFromWhatComputesOrCopies) {
  for (const char* name : {"aten::view", "aten::t", "aten::transpose.int", "aten::slice.Tensor", "aten::expand",
                           "aten::as_strided", "aten::detach", "aten::unbind.int", "aten::split.Tensor"}) {
    EXPECT_TRUE(op_info(name).is_view) << name;
  }
  for (const char* name : {"aten::add_.Tensor", "aten::mm", "aten::clone", "aten::mm.out", "aten::t_", "aten::copy_"}) {
    EXPECT_FALSE(op_info(name).is_view) << name;
  }
}

TEST(OpInfo, TellsBareAllocationsFromWhatFills) {
  for (const char* name : {"aten::empty.memory_format", "aten::empty_like", "aten::empty_strided", "aten::new_empty"}) {
    EXPECT_TRUE(op_info(name).is_empty) << name;
  }
  for (const char* name : {"aten::zeros", "aten::zeros_like", "aten::full", "aten::new_zeros"}) {
    EXPECT_FALSE(op_info(name).is_empty) << name;
  }
}

TEST(OpInfo, CallsSeededWhatMayDrawRandomNumbers) {
  for (const char* name : {"aten::native_dropout", "aten::bernoulli_.float", "aten::normal_", "aten::randn",
                           "aten::randperm", "aten::_scaled_dot_product_flash_attention", "aten::multinomial"}) {
    EXPECT_TRUE(op_info(name).seeded) << name;
  }
  for (const char* name : {"aten::mm", "aten::zeros", "aten::native_dropout_backward"}) {
    EXPECT_FALSE(op_info(name).seeded) << name;
  }
}

TEST(OpInfo, KnowsTheArgumentsThatACallWrites) {
  EXPECT_THAT(op_info("aten::add_.Tensor").writes, ElementsAre(true, false, false));
  EXPECT_THAT(op_info("aten::mm.out").writes, ElementsAre(false, false, true));
  EXPECT_TRUE(op_info("aten::_foreach_add_.Scalar").writes[0]) << "a list";
  EXPECT_FALSE(op_info("aten::mm").writes_anything());
  EXPECT_TRUE(op_info("aten::mm.out").writes_anything());
}

TEST(OpInfo, KnowsWhichCallsWriteRunningStatisticsInSilence) {
  const OpInfo trained = op_info("aten::native_batch_norm");
  EXPECT_THAT(trained.running_statistic, ElementsAre(false, false, false, true, true, false, false, false));
  EXPECT_TRUE(trained.writes_anything());
  std::vector<c10::IValue> inputs(8);
  inputs[5] = true;
  EXPECT_TRUE(trained.writes_statistics(inputs));
  inputs[5] = false;
  EXPECT_FALSE(trained.writes_statistics(inputs));

  const OpInfo always = op_info("aten::batch_norm_update_stats");
  EXPECT_THAT(always.running_statistic, ElementsAre(false, true, true, false));
  EXPECT_TRUE(always.writes_statistics(std::vector<c10::IValue>(4))) << "it has no flag";
}

// What Python's torch.library does when a library is defined, dropped and defined anew.
TEST(OpInfo, DoesNotTakeANewOperatorForARemovedOneAtItsAddress) {
  std::set<const void*> addresses;
  for (int i = 0; i < 40; ++i) {
    const std::string name = "op_" + std::to_string(i);  // short, so that it lies inside the schema itself
    torch::Library library(torch::Library::DEF, "pia", std::nullopt, __FILE__, __LINE__);
    library.def((name + "(Tensor x) -> Tensor").c_str(), torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd,
                                                                         [](const at::Tensor& x) { return x + 1; }));
    const c10::OperatorHandle handle = c10::Dispatcher::singleton().findSchemaOrThrow(("pia::" + name).c_str(), "");
    addresses.insert(handle.schema().name().c_str());
    const OpTrace trace = pianola::testing::trace_of([&] {
      c10::Stack stack{at::randn({2})};
      handle.callBoxed(stack);
    });
    EXPECT_EQ(pianola::testing::names_of(trace).back(), "pia::" + name);
  }
  EXPECT_LT(addresses.size(), 40U) << "no address came back, so that nothing was tested";
}

}  // namespace
}  // namespace pianola::trace::op_info_test
