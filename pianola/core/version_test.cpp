#include <pianola/core/version.hpp>

#include <gmock/gmock.h>

namespace pianola::version_test {
namespace {

TEST(Version, IsThreeNumbers) {
  EXPECT_THAT(std::string(version()), ::testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
}

}  // namespace
}  // namespace pianola::version_test
