#include <pianola/cuda/error_codes.hpp>

#include <pianola/core/error.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace pianola::error_codes_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

class CodeTable : public ::testing::TestWithParam<int> {};

TEST_P(CodeTable, HasNameMeaningAndFix) {
  const CaptureCode words = describe(static_cast<CUresult>(GetParam()));
  EXPECT_THAT(std::string(words.name), StartsWith("CUDA_ERROR_"));
  EXPECT_FALSE(words.meaning.empty());
  EXPECT_FALSE(words.fix.empty());
}
INSTANTIATE_TEST_SUITE_P(CaptureAndLaunch, CodeTable,
                         ::testing::Values(1, 2, 100, 201, 700, 719, 900, 901, 902, 903, 904, 905, 906, 907, 908, 910));

TEST(Describe, KnowsWhatAnUnjoinedStreamNeeds) {
  const CaptureCode words = describe(CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  EXPECT_EQ(words.name, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED");
  EXPECT_THAT(std::string(words.meaning), HasSubstr("not joined"));
  EXPECT_THAT(std::string(words.fix), HasSubstr("record an event"));
}

TEST(Describe, PassesOnTheNumberOfACodeItDoesNotKnow) {
  EXPECT_EQ(describe(static_cast<CUresult>(998)).name, "");
  EXPECT_THAT(in_words(static_cast<CUresult>(998)), StartsWith("CUDA error 998"));
}

TEST(Check, IsSilentOnSuccess) { EXPECT_NO_THROW(check(CUDA_SUCCESS, "cuGraphLaunch")); }

TEST(Check, NamesCallCodeMeaningAndFix) {
  EXPECT_THAT([] { check(CUDA_ERROR_OUT_OF_MEMORY, "cuGraphInstantiate"); },
              ThrowsMessage<DeviceError>(AllOf(
                  StartsWith("cuGraphInstantiate failed: CUDA_ERROR_OUT_OF_MEMORY (2): the device is out of memory"),
                  HasSubstr("fix:   free memory"))));
}

}  // namespace
}  // namespace pianola::error_codes_test
