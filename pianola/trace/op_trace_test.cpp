#include <pianola/trace/op_trace.hpp>

#include <pianola/trace/testing/device_test.hpp>
#include <pianola/trace/testing/reused_identity.hpp>
#include <pianola/trace/testing/trace_of.hpp>

#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/autograd.h>

#include <set>

namespace pianola::op_trace_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::names_of;
using testing::op_named;
using testing::trace_of;

class Trace : public testing::DeviceTest {};
PIANOLA_ON_EVERY_DEVICE(Trace);

TEST_P(Trace, DescribesEachTensorAsTheOperationSawIt) {
  const at::Tensor base = randn({4, 6});
  const at::Tensor x = base.slice(1, 2, 5);  // a view: 3 of 6 columns
  const OpTrace trace = trace_of([&] { at::relu(x); });
  const TensorRecord& in = trace.inputs(trace.ops()[0])[0];
  EXPECT_EQ(in.storage, base.storage().unsafeGetStorageImpl());
  EXPECT_EQ(in.address, static_cast<const float*>(base.const_data_ptr()) + 2);
  EXPECT_EQ(in.span_bytes, (3 * 6 + 3) * sizeof(float));
  EXPECT_THAT(trace.sizes(in), ElementsAre(4, 3));
  EXPECT_THAT(trace.strides(in), ElementsAre(6, 1));
  EXPECT_EQ(in.dtype, at::kFloat);
  EXPECT_EQ(in.device, device());
  EXPECT_EQ(in.argument, 0);
}

TEST_P(Trace, KeepsEachTensorOfAListUnderItsArgument) {
  const at::Tensor a = randn({2}), b = randn({3}).to(at::kDouble);
  const OpTrace trace = trace_of([&] { at::cat({a, b}); });
  const auto inputs = trace.inputs(op_named(trace, "aten::cat"));
  ASSERT_EQ(inputs.size(), 2U);
  EXPECT_EQ(inputs[0].argument, 0);
  EXPECT_EQ(inputs[1].argument, 0);
  EXPECT_EQ(inputs[0].dtype, at::kFloat);
  EXPECT_EQ(inputs[1].dtype, at::kDouble);
  EXPECT_THAT(trace.sizes(inputs[1]), ElementsAre(3));
}

TEST_P(Trace, TellsTheVersionAtTheCall) {
  const at::Tensor x = randn({2});
  const auto before = static_cast<std::uint32_t>(x._version());
  const OpTrace trace = trace_of([&] {
    x.add_(1);
    at::relu(x);
  });
  EXPECT_EQ(trace.inputs(trace.ops()[0])[0].version, before);
  EXPECT_EQ(trace.inputs(trace.ops()[1])[0].version, before + 1);
}

TEST_P(Trace, TellsMemoryOfTheStepFromMemoryThatWasThere) {
  const at::Tensor x = randn({2, 2});
  const OpTrace trace = trace_of([&] { at::gelu(at::relu(x).t()).add_(x); });
  ASSERT_THAT(names_of(trace), ElementsAre("aten::relu", "aten::t", "aten::gelu", "aten::add_.Tensor"));
  const auto made = [&](std::size_t op) {
    std::vector<bool> all;
    for (const TensorRecord& in : trace.inputs(trace.ops()[op])) all.push_back(in.made_in_step);
    for (const TensorRecord& out : trace.outputs(trace.ops()[op])) all.push_back(out.made_in_step);
    return all;
  };
  EXPECT_THAT(made(0), ElementsAre(false, true));
  EXPECT_THAT(made(1), ElementsAre(true, true)) << "a view of it";
  EXPECT_THAT(made(3), ElementsAre(true, false, true)) << "x was there";
}

TEST_P(Trace, DoesNotCallAViewOrAnInPlaceResultOfOutsideMemoryMade) {
  const at::Tensor x = randn({2, 2});
  const OpTrace trace = trace_of([&] { x.t().add_(1); });
  for (const OpRecord& op : trace.ops()) EXPECT_FALSE(trace.outputs(op)[0].made_in_step) << trace.name(op);
}

// cuDNN's LSTM looks for its weights' common memory like this.
TEST_P(Trace, DoesNotCallMemoryMadeThatATensorIsSetToLookAt) {
  const at::Tensor outside = randn({4});
  const OpTrace trace = trace_of([&] {
    at::Tensor alias = at::empty({0}, outside.options());
    alias.set_(outside.storage(), 0, {4}, {1});
    alias.neg_();
    outside.relu_();
  });
  EXPECT_FALSE(trace.outputs(op_named(trace, "aten::set_.source_Storage_storage_offset"))[0].made_in_step);
  EXPECT_FALSE(trace.inputs(op_named(trace, "aten::neg_"))[0].made_in_step);
  EXPECT_FALSE(trace.inputs(op_named(trace, "aten::relu_"))[0].made_in_step);
}

TEST_P(Trace, DoesNotCallMemoryMadeThatIsKnownByWhatAFreedResultWasKnownBy) {
  if (!testing::identities_are_reused()) GTEST_SKIP() << "no storage takes a freed one's place";
  const at::Tensor outside = randn({4});
  const OpTrace trace = trace_of([&] {
    const void* const freed = trace::storage_of(at::neg(outside));
    const at::Tensor alias =
        testing::made_in_place_of(freed, [&] { return at::from_blob(outside.data_ptr(), {4}, outside.options()); });
    at::relu(alias);
  });
  EXPECT_FALSE(trace.inputs(op_named(trace, "aten::relu"))[0].made_in_step);
}

TEST_P(Trace, MarksWhatIsWritten) {
  at::Tensor x = randn({2, 2}), out = randn({2, 2});
  const OpTrace trace = trace_of([&] {
    x.add_(out);
    at::mm_out(out, x, x);
    at::relu(x);
  });
  const auto written = [&](const char* name) {
    std::vector<bool> all;
    for (const TensorRecord& in : trace.inputs(op_named(trace, name))) all.push_back(in.written);
    for (const TensorRecord& result : trace.outputs(op_named(trace, name))) all.push_back(result.written);
    return all;
  };
  EXPECT_THAT(written("aten::add_.Tensor"), ElementsAre(true, false, false));
  EXPECT_THAT(written("aten::mm.out"), ElementsAre(false, false, true, false));
  EXPECT_THAT(written("aten::relu"), ElementsAre(false, true)) << "a new result is written";
}

// Each backend has a batch norm of its own; all write these two in silence.
TEST_P(Trace, MarksRunningStatisticsAsWrittenInTrainingOnly) {
  const at::Tensor x = randn({4, 3, 2, 2}), w = at::ones({3}, device()), mean = at::zeros({3}, device()),
                   var = at::ones({3}, device());
  for (const bool training : {true, false}) {
    const OpTrace trace = trace_of([&] { at::batch_norm(x, w, w, mean, var, training, 0.1, 1e-5, true); });
    std::set<const void*> written,
        storages{mean.storage().unsafeGetStorageImpl(), var.storage().unsafeGetStorageImpl()};
    for (const OpRecord& op : trace.ops()) {
      for (const TensorRecord& in : trace.inputs(op)) {
        if (in.written) written.insert(in.storage);
      }
    }
    EXPECT_EQ(written, training ? storages : std::set<const void*>{}) << "training: " << training;
  }
}

TEST_P(Trace, KeepsNumbersByValue) {
  const at::Tensor x = randn({2, 6});
  const OpTrace trace = trace_of([&] {
    at::add(x, x, 2.5);
    x.sum(at::IntArrayRef{0, 1}, /*keepdim=*/true);
  });
  const auto add = trace.scalars(op_named(trace, "aten::add.Tensor"));
  ASSERT_EQ(add.size(), 1U);
  EXPECT_EQ(add[0].argument, 2);
  EXPECT_EQ(std::get<double>(add[0].value), 2.5);
  const auto sum = trace.scalars(op_named(trace, "aten::sum.dim_IntList"));
  ASSERT_EQ(sum.size(), 3U);
  EXPECT_EQ(sum[0].argument, 1);
  EXPECT_EQ(std::get<std::int64_t>(sum[0].value), 0);
  EXPECT_EQ(std::get<std::int64_t>(sum[1].value), 1);
  EXPECT_EQ(sum[2].argument, 2);
  EXPECT_TRUE(std::get<bool>(sum[2].value));
}

TEST_P(Trace, NamesTheScopesOfEachOperation) {
  const at::Tensor x = randn({2});
  const OpTrace trace = trace_of([&] {
    at::relu(x);
    RECORD_USER_SCOPE("model");
    at::gelu(x);
    {
      RECORD_USER_SCOPE("head");
      at::add(x, x);
    }
    at::mul(x, x);
  });
  EXPECT_EQ(trace.scope(op_named(trace, "aten::relu")), "");
  EXPECT_EQ(trace.scope(op_named(trace, "aten::gelu")), "model");
  EXPECT_EQ(trace.scope(op_named(trace, "aten::add.Tensor")), "model/head");
  EXPECT_EQ(trace.scope(op_named(trace, "aten::mul.Tensor")), "model");
}

TEST_P(Trace, LinksABackwardOperationToItsForward) {
  const at::Tensor x = randn({4, 4}), w = randn({4, 4}, 2).requires_grad_(), b = randn({4}, 3).requires_grad_();
  const OpTrace trace = trace_of([&] { torch::autograd::grad({at::relu(at::addmm(b, x, w)).sum()}, {w, b}); });
  const OpRecord& forward = op_named(trace, "aten::relu");
  const OpRecord& backward = op_named(trace, "aten::threshold_backward");
  EXPECT_FALSE(forward.backward);
  EXPECT_EQ(forward.forward_sequence, -1);
  EXPECT_GE(forward.sequence, 0);
  EXPECT_TRUE(backward.backward);
  EXPECT_EQ(backward.forward_sequence, forward.sequence);
}

TEST_P(Trace, TellsTheStream) {
  const at::Tensor x = randn({2, 2});
  const auto run = [&] { return trace_of([&] { at::relu(x); }); };
  EXPECT_EQ(run().ops()[0].stream, 0);
#if PIANOLA_WITH_CUDA
  if (on_cuda()) {
    const c10::cuda::CUDAStreamGuard other(c10::cuda::getStreamFromPool());
    EXPECT_EQ(run().ops()[0].stream, other.current_stream().id());
  }
#endif
}

TEST_P(Trace, HoldsNoTensorAlive) {
  at::Tensor x = randn({2, 2});
  const c10::weak_intrusive_ptr<c10::TensorImpl> witness(x.getIntrusivePtr());
  const OpTrace trace = trace_of([&] { at::relu(x); });
  x.reset();
  EXPECT_TRUE(witness.expired());
  EXPECT_THAT(trace.sizes(trace.inputs(trace.ops()[0])[0]), ElementsAre(2, 2)) << "what it says stays";
}

TEST_P(Trace, DescribesSparseTensorsWithoutMemoryOfTheirOwn) {
  const at::Tensor x = randn({3, 3}).to_sparse();
  const OpTrace trace = trace_of([&] { at::mul(x, x); });
  const OpRecord& op = op_named(trace, "aten::mul.Tensor");
  EXPECT_EQ(trace.inputs(op)[0].storage, nullptr);
  EXPECT_EQ(trace.inputs(op)[0].span_bytes, 0U);
  EXPECT_THAT(trace.sizes(trace.inputs(op)[0]), IsEmpty());
  EXPECT_FALSE(trace.inputs(op)[0].made_in_step);
}

TEST(EmptyTrace, HasNoOperations) {
  EXPECT_THAT(trace_of([] {}).ops(), IsEmpty());
}

TEST(MovedTrace, TakesItsOperationsAlong) {
  const at::Tensor x = at::ones({2});
  OpTrace from = trace_of([&] { at::relu(x); });
  const OpTrace to = std::move(from);
  EXPECT_THAT(names_of(to), ElementsAre("aten::relu"));
}

}  // namespace
}  // namespace pianola::op_trace_test
