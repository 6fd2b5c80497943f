// Files of Nsight Systems, which Python reads: python/pianola/_nsight.py.
#include <pianola/core/error.hpp>
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

TEST(NsightFileTest, IsRefusedWhereItIsAnExport) {
  const TemporaryFolder folder;
  profiling::write_file(folder / "report", std::string_view("SQLite format 3\0 and more", 25));
  EXPECT_THAT([&] { (void)read_profile(folder / "report"); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("report' is an export of Nsight Systems, which Python reads"),
                                              HasSubstr("fix:   pianola decide '" + folder / "report" + "'"))));
}

}  // namespace
}  // namespace pianola::nsight_file_test
