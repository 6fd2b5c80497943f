#include <pianola/distributed/process_group.hpp>

#include <pianola/core/error.hpp>

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

namespace pianola::distributed::process_group_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// The variables of a launcher, as none has set them.
class ProcessGroupTest : public ::testing::Test {
 protected:
  ProcessGroupTest() { clear(); }
  ~ProcessGroupTest() override { clear(); }

  static void clear() {
    for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) unsetenv(name);
  }
  static std::string refusal(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  static std::string refusal_of_environment() {
    return refusal(
        [] { static_cast<void>(process_group_from_environment(c10::DeviceType::CPU, {.name = "refused"})); });
  }
};

TEST_F(ProcessGroupTest, IsThisProcessAloneWithoutALauncher) {
  const auto group = process_group_from_environment(c10::DeviceType::CPU, {.name = "alone"});
  EXPECT_EQ(group->getSize(), 1);
  EXPECT_EQ(group->getGroupName(), "alone");
  EXPECT_EQ(c10d::resolve_process_group("alone"), group);
  std::vector<at::Tensor> tensors{at::ones({2})};
  group->allreduce(tensors)->wait();
  EXPECT_TRUE(at::equal(tensors.front(), at::ones({2})));
}

TEST_F(ProcessGroupTest, RanksMeetAtTheMasterPort) {
  setenv("RANK", "0", 1);
  setenv("WORLD_SIZE", "1", 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", "0", 1);  // any
  EXPECT_EQ(process_group_from_environment(c10::DeviceType::CPU, {.name = "one"})->getSize(), 1);
}

TEST_F(ProcessGroupTest, ANameIsFreeAgainWhenItsGroupHasEnded) {
  const auto make = [] { return process_group_from_environment(c10::DeviceType::CPU, {.name = "again"}); };
  auto group = make();
  EXPECT_THAT(refusal([&] { static_cast<void>(make()); }),
              AllOf(HasSubstr("a process group 'again' lives already"), HasSubstr("ProcessGroupOptions::name")));
  group.reset();
  EXPECT_EQ(make()->getSize(), 1);
}

TEST_F(ProcessGroupTest, RefusesVariablesThatAreMissingOrWrong) {
  setenv("RANK", "0", 1);
  EXPECT_THAT(refusal_of_environment(),
              AllOf(HasSubstr("WORLD_SIZE of this process is not set"), HasSubstr("by torchrun")));
  setenv("WORLD_SIZE", "two", 1);
  EXPECT_THAT(refusal_of_environment(), HasSubstr("WORLD_SIZE must be a number from 1 to 16777216, it is 'two'"));
  setenv("WORLD_SIZE", "2", 1);
  setenv("RANK", "2", 1);
  EXPECT_THAT(refusal_of_environment(), HasSubstr("RANK must be a number from 0 to 1, it is '2'"));
  setenv("RANK", "1", 1);
  EXPECT_THAT(refusal_of_environment(), HasSubstr("MASTER_PORT of this process is not set"));
  setenv("MASTER_PORT", "29500", 1);
  EXPECT_THAT(refusal_of_environment(), HasSubstr("MASTER_ADDR of this process is not set"));
}

TEST_F(ProcessGroupTest, RefusesRanksAndDevicesThatThereAreNot) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto refusal_of = [&](c10::DeviceType device, int rank, const c10::intrusive_ptr<c10d::Store>& meeting) {
    return refusal([&] { static_cast<void>(make_process_group(device, meeting, rank, 2, {.name = "refused"})); });
  };
  EXPECT_THAT(refusal_of(c10::DeviceType::CPU, 2, store),
              AllOf(HasSubstr("rank 2 of 2"), HasSubstr("numbered from 0")));
  EXPECT_THAT(refusal_of(c10::DeviceType::CPU, -1, store), HasSubstr("rank -1 of 2"));
  EXPECT_THAT(refusal_of(c10::DeviceType::CPU, 0, nullptr), AllOf(HasSubstr("no store"), HasSubstr("TCPStore")));
  EXPECT_THAT(refusal_of(c10::DeviceType::MPS, 0, store), HasSubstr("no process group can be made for tensors on mps"));
}

}  // namespace
}  // namespace pianola::distributed::process_group_test
