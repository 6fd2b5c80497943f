// What is told of a file before it is opened, with or without SQLite.
#include <pianola/core/error.hpp>
#include <pianola/profile/read/nsight_export.hpp>
#include <pianola/profile/read/read_profile.hpp>
#include <pianola/profile/testing/temporary_folder.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace pianola::nsight_file_test {
namespace {

using profiling::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(NsightFileTest, IsRefusedWhereItIsAReport) {
  const TemporaryFolder folder;
  for (const std::string name : {"train.nsys-rep", "train.qdrep"}) {
    profiling::write_file(folder / name, "some bytes");
    EXPECT_THAT([&] { (void)read_profile(folder / name); },
                ThrowsMessage<UsageError>(AllOf(HasSubstr("'" + folder / name + "' is a report of Nsight Systems"),
                                                HasSubstr("nsys export --type sqlite --output '" +
                                                          folder / "train.sqlite" + "' '" + folder / name + "'"))));
  }
}

TEST(NsightFileTest, IsNoReportWhereThereIsNone) {
  const TemporaryFolder folder;
  EXPECT_THAT([&] { (void)read_profile(folder / "none.nsys-rep"); },
              ThrowsMessage<UsageError>(HasSubstr("there is no trace file")));
}

TEST(NsightFileTest, IsRefusedWhereItIsNotOfSqlite) {
  const TemporaryFolder folder;
  for (const std::string_view text : {"", "SQLite", "{\"traceEvents\": []}"}) {
    profiling::write_file(folder / "trace.sqlite", text);
    EXPECT_THAT([&] { (void)read_profile(folder / "trace.sqlite"); },
                ThrowsMessage<UsageError>(AllOf(HasSubstr("trace.sqlite' is no SQLite file"),
                                                HasSubstr("nsys export --type sqlite REPORT.nsys-rep"))));
  }
}

#if !PIANOLA_WITH_SQLITE
TEST(NsightFileTest, IsRefusedByABuildWithoutSqlite) {
  const TemporaryFolder folder;
  profiling::write_file(folder / "report", std::string_view("SQLite format 3\0 and more", 25));
  EXPECT_THAT([&] { (void)read_profile(folder / "report"); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("is an SQLite file, and this build has no SQLite"),
                                              HasSubstr("apt-get install libsqlite3-dev"))));
}

TEST(NsightExportTest, HoldsAllThatHappened) { GTEST_SKIP() << "built without SQLite"; }
#endif

}  // namespace
}  // namespace pianola::nsight_file_test
