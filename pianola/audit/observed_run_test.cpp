#include <pianola/audit/observed_run.hpp>

#include <pianola/audit/run_observer.hpp>
#include <pianola/trace/testing/device_test.hpp>
#include <pianola/trace/testing/reused_identity.hpp>

#include <ATen/ops/neg.h>

#include <optional>

namespace pianola::observed_run_test {
namespace {

using auditing::LeafWatch;
using auditing::ObservedRun;
using auditing::RunObserver;

class ObservedRuns : public testing::DeviceTest {
 protected:
  static ObservedRun observed(const std::function<void()>& step) {
    LeafWatch leaves;
    TraceRecorder recorder;
    RunObserver observer(recorder, leaves, {}, nullptr, nullptr);
    std::optional<trace::OpStream> stream(std::in_place, std::vector<trace::OpObserver*>{&recorder, &observer});
    step();
    stream.reset();
    ObservedRun run = observer.take();
    run.trace = recorder.take();
    return run;
  }
};
PIANOLA_ON_EVERY_DEVICE(ObservedRuns);

TEST_P(ObservedRuns, HoldNothingTheyMadeAlive) {
  const at::Tensor x = randn({4});
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> witness;
  const ObservedRun run = observed([&] { witness.emplace(at::neg(x).storage().getWeakStorageImpl()); });
  EXPECT_TRUE(witness->expired());
  EXPECT_TRUE(run.survivors.empty());
}

TEST_P(ObservedRuns, KeepWhatFreedMemoryWasKnownByFromOthers) {
  if (!testing::identities_are_reused()) GTEST_SKIP() << "no storage takes a freed one's place";
  const at::Tensor x = randn({4});
  const void* freed = nullptr;
  const ObservedRun run = observed([&] { freed = trace::storage_of(at::neg(x)); });
  EXPECT_NE(trace::storage_of(testing::made_in_place_of(freed, [] { return at::empty({4}); })), freed);
}

}  // namespace
}  // namespace pianola::observed_run_test
