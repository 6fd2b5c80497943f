#pragma once
#include <pianola/distributed/process_group.hpp>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

namespace pianola::distributed {

/// Cases that run on two ranks: this process, and a second one of the same program that runs the same cases as rank 1. Both communicate by
/// Gloo. What fails on rank 1 is printed, and fails the suite.
class TwoRanks : public ::testing::Test {
 protected:
  static int rank() { return std::getenv(kPort) == nullptr ? 0 : 1; }
  static const c10::intrusive_ptr<c10d::ProcessGroup>& group() { return shared().group; }

  static void SetUpTestSuite() {
    c10d::TCPStoreOptions options{.isServer = rank() == 0, .waitWorkers = false, .timeout = kTimeout};
    options.port = rank() == 0 ? 0 : static_cast<std::uint16_t>(std::stoi(std::getenv(kPort)));
    const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
    if (rank() == 0) shared().other = start_other(std::to_string(store->getPort()));
    shared().group =
        make_process_group(c10::DeviceType::CPU, store, rank(), 2, {.name = "two_ranks", .timeout = kTimeout});
  }
  static void TearDownTestSuite() {
    shared().group.reset();
    if (rank() == 1) return;
    int status = 0;
    waitpid(shared().other, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "rank 1 failed, with status " << status;
  }

 private:
  static constexpr const char* kPort = "PIANOLA_TEST_RANKS_MEET_AT";
  static constexpr std::chrono::seconds kTimeout{30};
  struct Shared {
    c10::intrusive_ptr<c10d::ProcessGroup> group;
    pid_t other = 0;
  };
  static Shared& shared() {
    static Shared one;
    return one;
  }

  static pid_t start_other(const std::string& port) {
    const std::string suite = ::testing::UnitTest::GetInstance()->current_test_suite()->name();
    const std::string wanted = GTEST_FLAG_GET(filter);
    std::string program = std::filesystem::read_symlink("/proc/self/exe"), brief = "--gtest_brief=1";
    std::string filter = "--gtest_filter=" + (wanted == "*" ? suite + ".*" : wanted);
    const std::array<char*, 4> arguments = {program.data(), filter.data(), brief.data(), nullptr};
    setenv(kPort, port.c_str(), 1);
    pid_t other = 0;
    const int failed = posix_spawn(&other, program.c_str(), nullptr, nullptr, arguments.data(), environ);
    unsetenv(kPort);
    if (failed != 0) throw std::system_error(failed, std::generic_category(), "posix_spawn");
    return other;
  }
};

}  // namespace pianola::distributed
