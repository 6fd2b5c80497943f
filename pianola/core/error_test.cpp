#include <pianola/core/error.hpp>

#include <pianola/core/out_of_memory_error.hpp>

#include <gtest/gtest.h>

#include <string>
#include <type_traits>

namespace pianola::error_test {
namespace {

TEST(Error, SaysWhatWhereAndWhatToDoOnALineEach) {
  const CaptureError error({.what = "aten::item read a CUDA tensor on the host during capture",
                            .where = "operation 41, train_step at loss.cpp:88",
                            .fix = "keep the value on the device"});
  EXPECT_STREQ(error.what(),
               "aten::item read a CUDA tensor on the host during capture\n"
               "  where: operation 41, train_step at loss.cpp:88\n"
               "  fix:   keep the value on the device");
}

TEST(Error, LeavesOutWhatItHasNothingToSayAbout) {
  EXPECT_STREQ(UsageError({.what = "warmup must be 0 or more, got -1"}).what(), "warmup must be 0 or more, got -1");
  EXPECT_STREQ(UsageError({.what = "a", .fix = "b"}).what(), "a\n  fix:   b");
}

TEST(Error, KeepsThePartsForPrograms) {
  try {
    throw DeviceError({.what = "no driver", .where = "here", .fix = "install one"});
  } catch (const Error& error) {
    EXPECT_EQ(error.diagnosis().what, "no driver");
    EXPECT_EQ(error.diagnosis().where, "here");
    EXPECT_EQ(error.diagnosis().fix, "install one");
  }
}

TEST(Error, SaysAllOfItWhateverBytesItQuotes) {
  const UsageError error({.what = std::string("got 'a\0b\x1B[2J\xff'", 14), .where = "naïve\n  …", .fix = "line\tone"});
  EXPECT_STREQ(error.what(), "got 'a?b?[2J?'\n  where: naïve\n  …\n  fix:   line\tone");
  EXPECT_EQ(error.diagnosis().what, "got 'a?b?[2J?'");
}

template <class E>
class ErrorKind : public ::testing::Test {};
using Kinds = ::testing::Types<UsageError, CaptureError, OutOfMemoryError, ReplayError, GuardError, ScheduleError,
                               ConfigError, UnsupportedError, CommunicationError, DeviceError>;
TYPED_TEST_SUITE(ErrorKind, Kinds);

TYPED_TEST(ErrorKind, IsCaughtAsItselfAsErrorAndAsRuntimeError) {
  const auto raise = [] { throw TypeParam({.what = "it"}); };
  EXPECT_THROW(raise(), TypeParam);
  EXPECT_THROW(raise(), Error);
  EXPECT_THROW(raise(), std::runtime_error);
  static_assert(std::is_copy_constructible_v<TypeParam>);
}

}  // namespace
}  // namespace pianola::error_test
