#include <pianola/audit/cuda/call_findings.hpp>

#include <pianola/trace/testing/trace_of.hpp>

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>

#include <gmock/gmock.h>

#include <string>
#include <utility>
#include <vector>

namespace pianola::auditing::call_findings_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const auto kOwn = reinterpret_cast<CUstream>(std::uintptr_t{0x100});
const auto kSide = reinterpret_cast<CUstream>(std::uintptr_t{0x200});
const auto kEvent = reinterpret_cast<CUevent>(std::uintptr_t{0x300});

/// A run of two operations, aten::mm and aten::relu, with made-up calls of CUDA.
class CallFindings : public ::testing::Test {
 protected:
  static CudaCall call(ApiKind kind, const char* name, CUstream stream = kOwn) {
    CudaCall made;
    made.api.kind = kind;
    made.api.name = name;
    made.api.stream = stream;
    made.api.on_stream = kind == ApiKind::launch || kind == ApiKind::copy || kind == ApiKind::fill ||
                         kind == ApiKind::record || kind == ApiKind::stream_wait;
    made.of_step = true;
    made.caller = Caller::other;
    made.operation = 1;
    return made;
  }
  static CudaCall wait(Caller caller) {
    CudaCall made = call(ApiKind::wait, "cudaDeviceSynchronize");
    made.caller = caller;
    return made;
  }
  static CudaCall with_event(ApiKind kind, CUstream stream, CUevent event = kEvent) {
    CudaCall made = call(kind, kind == ApiKind::record ? "cudaEventRecord" : "cudaStreamWaitEvent", stream);
    made.api.event = event;
    return made;
  }
  static CudaCall in_operation(CudaCall made, bool aten) {
    made.inside = true;
    made.aten = aten;
    return made;
  }

  [[nodiscard]] std::vector<CudaFinding> findings(const std::vector<CudaCall>& calls) const {
    return call_findings({.calls = calls, .trace = trace, .own = kOwn, .device = 0});
  }
  /// "PG108: the host waits for the device (cudaDeviceSynchronize)".
  [[nodiscard]] std::vector<std::string> texts(const std::vector<CudaCall>& calls) const {
    std::vector<std::string> all;
    for (const CudaFinding& found : findings(calls)) {
      all.push_back(std::string(found.finding.rule->id) + ": " + found.finding.what);
    }
    return all;
  }
  [[nodiscard]] std::vector<std::string> rules(const std::vector<CudaCall>& calls) const {
    std::vector<std::string> all;
    for (const CudaFinding& found : findings(calls)) all.emplace_back(found.finding.rule->id);
    return all;
  }

  OpTrace trace = testing::trace_of(
      [] {
        const at::Tensor x = at::ones({4, 4});
        at::relu(at::mm(x, x));
      },
      {.call_sites = true});
};

TEST_F(CallFindings, TellWaitsOfTorchsFunctionsFromOthers) {
  EXPECT_THAT(texts({wait(Caller::torch)}),
              ElementsAre("PG108: the host waits for the device (cudaDeviceSynchronize)"));
  EXPECT_THAT(texts({wait(Caller::other)}),
              ElementsAre("PG110: the host waits for the device (cudaDeviceSynchronize)"));
  EXPECT_THAT(texts({wait(Caller::unknown)}),
              ElementsAre("PG108: the host waits for the device (cudaDeviceSynchronize)"));
  CudaCall of_library = wait(Caller::other);
  of_library.library = "libnccl.so.2";
  EXPECT_EQ(findings({of_library})[0].finding.evidence, "called by libnccl.so.2");
  CudaCall event = call(ApiKind::wait, "cuEventSynchronize");
  EXPECT_THAT(texts({event}), ElementsAre("PG110: the host waits for an event (cuEventSynchronize)"));
}

TEST_F(CallFindings, NameTheOperationAndItsPlaceWhereACallIsInside) {
  const auto found = findings({in_operation(wait(Caller::other), /*aten=*/false)});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].finding.op, trace.name(trace.ops()[0]));
  EXPECT_EQ(found[0].finding.place, trace.source(trace.ops()[0]));
  EXPECT_TRUE(found[0].finding.place.known());
  EXPECT_EQ(found[0].operation, 1U);
  EXPECT_TRUE(found[0].inside);
}

TEST_F(CallFindings, AreNearTheOperationBeforeWhereThePlaceIsUnknown) {
  CudaCall later = wait(Caller::torch);
  later.operation = 2;
  const auto found = findings({later});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].finding.op, "") << "it is not the operation's doing";
  EXPECT_EQ(found[0].finding.place, trace.source(trace.ops()[1]));
  CudaCall first = wait(Caller::torch);
  first.operation = 0;
  EXPECT_FALSE(findings({first})[0].finding.place.known());
}

TEST_F(CallFindings, OfAWaitBehindACopyInAnOperationIsAValueRead) {
  CudaCall read = in_operation(call(ApiKind::wait, "cudaStreamSynchronize"), /*aten=*/true);
  read.after_copy = true;
  EXPECT_THAT(rules({read}), ElementsAre("PG101"));
  read.aten = false;
  read.caller = Caller::internal;  // aten::item() inside a library's operation
  EXPECT_THAT(rules({read}), ElementsAre("PG101"));
  read.caller = Caller::other;
  EXPECT_THAT(rules({read}), ElementsAre("PG110"));
}

TEST_F(CallFindings, OfQueries) {
  EXPECT_THAT(texts({call(ApiKind::query, "cudaStreamQuery")}),
              ElementsAre("PG109: the host asks whether a stream is done (cudaStreamQuery)"));
}

TEST_F(CallFindings, OfCopiesThatBlock) {
  CudaCall copy = call(ApiKind::copy, "cudaMemcpy", nullptr);
  copy.api.blocking = true;
  EXPECT_THAT(texts({copy}), ElementsAre("PG110: cudaMemcpy blocks the host until the copy is done"));
  copy.api.name = "cuMemcpyDtoD";
  EXPECT_THAT(rules({copy}), ElementsAre("PG701")) << "inside the device it does not";
  CudaCall pageable = call(ApiKind::copy, "cudaMemcpyAsync");
  pageable.pageable = true;
  EXPECT_THAT(rules({pageable}), ElementsAre("PG202"));
  pageable.api.to_host = true;
  EXPECT_THAT(rules({pageable}), ElementsAre("PG110"));
  pageable.caller = Caller::internal;
  EXPECT_THAT(rules({pageable}), IsEmpty()) << "torch waits for its own copies in a call of its own";
}

TEST_F(CallFindings, OfPinnedMemoryAndOfFreeing) {
  CudaCall pinned = call(ApiKind::pinned_allocation, "cudaHostAlloc");
  pinned.api.bytes = 4096;
  const auto found = findings({pinned});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].finding.rule->id, "PG205");
  EXPECT_EQ(found[0].finding.evidence, "4096 bytes");
  EXPECT_THAT(rules({call(ApiKind::free, "cudaFree")}), ElementsAre("PG110"));
}

TEST_F(CallFindings, OfWorkOnTheDefaultStream) {
  EXPECT_THAT(texts({call(ApiKind::launch, "cuLaunchKernel", nullptr)}),
              ElementsAre("PG701: cuLaunchKernel puts work on the default stream"));
  EXPECT_THAT(rules({call(ApiKind::fill, "cudaMemsetAsync", nullptr)}), ElementsAre("PG701"));
  EXPECT_THAT(rules({call(ApiKind::launch, "cuLaunchKernel")}), IsEmpty());
}

TEST_F(CallFindings, OfAnOperationOnTheDefaultStreamAreOne) {
  const CudaCall launch = in_operation(call(ApiKind::launch, "cudaLaunchKernel", nullptr), /*aten=*/true);
  CudaCall next = launch;
  next.operation = 2;
  const auto found = findings({launch, launch, next});
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].finding.op, trace.name(trace.ops()[0]));
  EXPECT_EQ(found[1].finding.op, trace.name(trace.ops()[1]));
  CudaCall fill = in_operation(call(ApiKind::fill, "cudaMemsetAsync", nullptr), /*aten=*/true);
  EXPECT_THAT(rules({fill}), IsEmpty()) << "a library sets itself up";
}

TEST_F(CallFindings, AreNoneWhereTheStepsOwnStreamIsTheDefaultOne) {
  const std::vector<CudaCall> calls = {call(ApiKind::launch, "cuLaunchKernel", nullptr)};
  EXPECT_THAT(call_findings({.calls = calls, .trace = trace, .own = nullptr, .device = 0}), IsEmpty());
}

TEST_F(CallFindings, OfTheOrderOfStreams) {
  const CudaCall work = call(ApiKind::launch, "cuLaunchKernel", kSide);
  EXPECT_THAT(rules({with_event(ApiKind::record, kOwn), with_event(ApiKind::stream_wait, kSide), work}),
              ElementsAre("PG702"));
  EXPECT_THAT(rules({work}), ElementsAre("PG703"));
  EXPECT_THAT(rules({with_event(ApiKind::stream_wait, kOwn)}), ElementsAre("PG704"));
  const CUevent other = reinterpret_cast<CUevent>(std::uintptr_t{0x400});
  EXPECT_THAT(rules({with_event(ApiKind::record, kOwn), with_event(ApiKind::stream_wait, kSide), work,
                     with_event(ApiKind::record, kSide, other), with_event(ApiKind::stream_wait, kOwn, other)}),
              IsEmpty());
}

TEST_F(CallFindings, LeaveOutWhatOtherThreadsDo) {
  std::vector<CudaCall> calls = {wait(Caller::other), call(ApiKind::launch, "cuLaunchKernel", nullptr),
                                 call(ApiKind::launch, "cuLaunchKernel", kSide),
                                 with_event(ApiKind::stream_wait, kOwn)};
  EXPECT_THAT(rules(calls), ElementsAre("PG110", "PG701", "PG703", "PG704"));
  for (CudaCall& of_another : calls) of_another.of_step = false;
  EXPECT_THAT(rules(calls), IsEmpty());
}

}  // namespace
}  // namespace pianola::auditing::call_findings_test
