// The driver itself: that its inputs are the same each time and hostile enough to break a reader that trusts them.
#include <tests/fuzz/mutator.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>

namespace pianola::fuzz {
namespace {

const std::string kText = R"({"ts": 12.5, "dur": 3, "name": "gemm"})";

TEST(MutatorTest, MakesTheSameInputsEachTime) {
  const Mutator one({kText, "other"}), two({kText, "other"});
  std::set<std::string> inputs;
  for (std::uint64_t i = 0; i < 500; ++i) {
    EXPECT_EQ(one.input(7, i), two.input(7, i)) << i;
    inputs.insert(one.input(7, i));
  }
  EXPECT_GT(inputs.size(), 400u);
  EXPECT_NE(one.input(7, 3), one.input(8, 3));
}

TEST(MutatorTest, MakesInputsOfNothing) {
  const Mutator mutator({""});
  for (std::uint64_t i = 0; i < 500; ++i) (void)mutator.input(1, i);
}

// A reader of a length and so many bytes, which forgets to look whether they are there.
bool trusts_its_length(const std::string& bytes) {
  std::uint32_t length = 0;
  if (bytes.size() < sizeof length) return false;
  std::memcpy(&length, bytes.data(), sizeof length);
  return length > bytes.size() - sizeof length;
}

TEST(MutatorTest, FindsWhatBreaksCarelessReaders) {
  const Mutator texts({kText}), bytes({std::string("\x05\0\0\0hello", 9)});
  int too_large = 0, negative = 0, cut = 0, beyond = 0;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const std::string text = texts.input(1, i);
    too_large += text.find("9223372036854775807") != std::string::npos ? 1 : 0;
    negative += text.find("\"dur\": -") != std::string::npos ? 1 : 0;
    cut += !text.ends_with('}') ? 1 : 0;
    beyond += trusts_its_length(bytes.input(1, i)) ? 1 : 0;
  }
  EXPECT_GT(too_large, 10);
  EXPECT_GT(negative, 10);
  EXPECT_GT(cut, 100);
  EXPECT_GT(beyond, 100);
}

}  // namespace
}  // namespace pianola::fuzz
