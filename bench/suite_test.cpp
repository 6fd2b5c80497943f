#include "suite.hpp"

#include <pianola/core/error.hpp>

#include <gmock/gmock.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace pianola::bench {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class SuiteTest : public ::testing::Test {
 protected:
  SuiteTest() { std::ofstream(file_) << "no folder"; }
  ~SuiteTest() override {
    unlink(file_.c_str());
    rmdir(folder_.c_str());
  }

  static void run_with_traces(const std::string& folder) {
    std::ostringstream out;
    (void)run({.filter = "cpu/full_iteration", .traces = folder, .quick = true}, out);
  }

  const std::string file_ = ::testing::TempDir() + "pianola_suite_test_" + std::to_string(getpid());
  const std::string folder_ = file_ + "_traces";
};

TEST_F(SuiteTest, RefusesAFolderForTracesThatCannotBeWritten) {
  EXPECT_THAT([&] { run_with_traces(file_); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("cannot write traces into '" + file_ + "'"),
                                              HasSubstr("name a folder that can be made or written to"))));
  EXPECT_THAT([&] { run_with_traces(file_ + "/inside"); },
              ThrowsMessage<UsageError>(HasSubstr("cannot write traces into '" + file_ + "/inside'")));
}

TEST_F(SuiteTest, RefusesToPromiseTracesWhereNoBenchmarkHasAny) {
  EXPECT_THAT([&] { run_with_traces(folder_); },
              ThrowsMessage<UsageError>(
                  AllOf(HasSubstr("none of the 1 benchmarks has traces to write"), HasSubstr("choose cuda/scopes"))));
}

TEST_F(SuiteTest, ListsTheBenchmarksOfTheCpu) {
  EXPECT_THAT(names({.device = "cpu"}), Contains("cpu/profile_million_events"));
}

}  // namespace
}  // namespace pianola::bench
