#include <pianola/trace/host_read.hpp>

#include <pianola/trace/testing/device_test.hpp>
#include <pianola/trace/testing/trace_of.hpp>

#include <ATen/ops/_neg_view.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/index.h>
#include <ATen/ops/index_put.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/masked_select.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/unique_consecutive.h>
#include <ATen/ops/where.h>

#if PIANOLA_WITH_CUDA
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace pianola::trace::host_read_test {
namespace {

using Indices = c10::List<std::optional<at::Tensor>>;

struct Operands {
  at::Tensor x, mask, rows, row, number;
};

struct Case {
  const char* name;
  bool reads;
  void (*call)(const Operands& on);
};

const Case kCases[] = {
    {"Item", true, [](const Operands& on) { on.number.item(); }},
    {"Equal", true, [](const Operands& on) { at::equal(on.row, on.x[0]); }},
    {"EqualToItself", false, [](const Operands& on) { at::equal(on.x, on.x); }},
    {"EqualToTheSameView", false,
     [](const Operands& on) {
       at::equal(on.x, on.x.view({3, 3}));
     }},
    {"EqualToAnotherViewOfTheSameMemory", true, [](const Operands& on) { at::equal(on.x, on.x.t()); }},
    {"EqualToItselfThatIsStillToBeNegated", true,
     [](const Operands& on) {
       const at::Tensor negative = at::_neg_view(on.x);
       at::equal(negative, negative);
     }},
    {"EqualToItselfThatIsStillToBeConjugated", true,
     [](const Operands& on) {
       const at::Tensor conjugate = at::complex(on.x, on.x).conj();
       at::equal(conjugate, conjugate);
     }},
    {"EqualToAnotherShape", false, [](const Operands& on) { at::equal(on.x, on.row); }},
    {"AllClose", true, [](const Operands& on) { at::allclose(on.x, on.x); }},
    {"Nonzero", true, [](const Operands& on) { at::nonzero(on.x); }},
    {"WhereOfAConditionAlone", true, [](const Operands& on) { at::where(on.mask); }},
    {"MaskedSelect", true, [](const Operands& on) { at::masked_select(on.x, on.mask); }},
    {"Unique", true, [](const Operands& on) { at::_unique2(on.rows); }},
    {"UniqueConsecutive", true, [](const Operands& on) { at::unique_consecutive(on.rows); }},
    {"Bincount", true, [](const Operands& on) { at::bincount(on.rows); }},
    {"RepeatByATensor", true, [](const Operands& on) { at::repeat_interleave(on.rows); }},
    {"RepeatByATensorToAKnownSize", false, [](const Operands& on) { at::repeat_interleave(on.rows, 3); }},
    {"IndexByAMask", true, [](const Operands& on) { at::index(on.x, Indices({on.mask})); }},
    {"IndexByNumbers", false, [](const Operands& on) { at::index(on.x, Indices({on.rows})); }},
    {"PutByNumbers", false, [](const Operands& on) { on.x.index_put_(Indices({on.rows}), on.row); }},
    {"PutATensorByAMask", true, [](const Operands& on) { on.x.index_put_(Indices({on.mask}), on.row); }},
    {"PutANumberOfTheHostByAMask", false,
     [](const Operands& on) { on.x.index_put_(Indices({on.mask}), at::scalar_tensor(2.0)); }},
    {"PutANumberOfTheHostByAMaskOfTheLastDimension", false,
     [](const Operands& on) {
       on.x.index_put_(Indices({std::nullopt, on.mask}), at::scalar_tensor(2.0));
     }},
    {"AddANumberOfTheHostByAMask", true,
     [](const Operands& on) { on.x.index_put_(Indices({on.mask}), at::scalar_tensor(2.0), /*accumulate=*/true); }},
    {"PutANumberOfTheHostByAMaskAndNumbers", true,
     [](const Operands& on) {
       on.x.index_put_(Indices({on.mask, on.rows}), at::scalar_tensor(2.0));
     }},
    {"CopyThenPutByAMask", true, [](const Operands& on) { at::index_put(on.x, Indices({on.mask}), on.row); }},
    {"MaskedFill", false, [](const Operands& on) { at::masked_fill(on.x, on.mask, 2.0); }},
};

Operands operands(c10::Device device) {
  return {.x = at::ones({3, 3}, device),
          .mask = at::ones({3}, at::TensorOptions(device).dtype(at::kBool)),
          .rows = at::ones({3}, at::TensorOptions(device).dtype(at::kLong)),
          .row = at::ones({3}, device),
          .number = at::ones({}, device)};
}

bool trace_tells_a_read(const OpTrace& trace) {
  return std::any_of(trace.ops().begin(), trace.ops().end(), [](const OpRecord& op) { return op.host_read; });
}

class HostReads : public pianola::testing::DeviceTest {};
PIANOLA_ON_EVERY_DEVICE(HostReads);

TEST_P(HostReads, IsToldByTheTraceOfEachCallThatReads) {
  for (const Case& tried : kCases) {
    const Operands on = operands(device());
    EXPECT_EQ(trace_tells_a_read(pianola::testing::trace_of([&] { tried.call(on); })), tried.reads) << tried.name;
  }
}

#if PIANOLA_WITH_CUDA
class SyncDebugMode : public pianola::testing::DeviceTest {};
INSTANTIATE_TEST_SUITE_P(On, SyncDebugMode, ::testing::Values("cuda"), pianola::testing::device_name);

// torch's own judge: it throws where a call waits for the device.
TEST_P(SyncDebugMode, RefusesWhatTheTraceCallsAHostRead) {
  for (const Case& tried : kCases) {
    const Operands on = operands(device());
    c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR);
    bool refused = false;
    try {
      tried.call(on);
    } catch (const c10::Error&) {
      refused = true;
    }
    c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
    EXPECT_EQ(refused, tried.reads) << tried.name;
  }
}
#endif

TEST(HostReadReason, IsAPhraseForEveryKindThatReads) {
  const std::string none = why_host(HostRead::never);
  for (const auto kind : {HostRead::always, HostRead::dynamic_shape, HostRead::bool_index, HostRead::bool_index_put,
                          HostRead::repeats_tensor}) {
    EXPECT_NE(why_host(kind), none);
    EXPECT_GT(why_host(kind).size(), 10U);
  }
}

}  // namespace
}  // namespace pianola::trace::host_read_test
