#include <apps/demo/text.hpp>

#include <pianola/core/error.hpp>

#include <ATen/ops/equal.h>

#include <gmock/gmock.h>

#include <cstdlib>
#include <fstream>

namespace pianola::demo {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Text, NumbersItsBytesInTheirOrder) {
  const Text text("banana!");
  EXPECT_EQ(text.size(), 7);
  EXPECT_EQ(text.vocabulary(), 4);
  EXPECT_THAT(text.encode("nab?"), ElementsAre(3, 1, 2));
  EXPECT_EQ(text.symbol(0), '!');
  EXPECT_EQ(text.tokens().select(0, 6).item<std::int64_t>(), 0);
}

TEST(Text, NumbersBytesBeyondAsciiToo) {
  const Text text("d\xc3\xa9j\xc3\xa0 vu");
  for (const char byte : std::string("d\xc3\xa9j\xc3\xa0 vu")) {
    const auto tokens = text.encode(std::string(1, byte));
    ASSERT_EQ(tokens.size(), 1U);
    EXPECT_EQ(text.symbol(tokens[0]), byte);
  }
}

TEST(Text, SaysWhatIsWrongWithAFile) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "pianola_text_test";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "empty.txt").close();
  EXPECT_THAT([&] { static_cast<void>(Text::read(folder / "none.txt")); },
              ThrowsMessage<UsageError>(HasSubstr("cannot read the text '" + (folder / "none.txt").string() + "'")));
  EXPECT_THAT([&] { static_cast<void>(Text::read(folder)); }, ThrowsMessage<UsageError>(HasSubstr("cannot read")));
  EXPECT_THAT([&] { static_cast<void>(Text::read(folder / "empty.txt")); },
              ThrowsMessage<UsageError>(HasSubstr("is empty")));
  std::filesystem::remove_all(folder);
}

TEST(BatchStream, GivesPiecesOfTheTextAndTheNextCharacters) {
  const Text text("abcdefghijklmnopqrstuvwxyz");
  BatchStream stream(text, 3, 5, 1);
  for (int i = 0; i < 100; ++i) {
    const auto [inputs, targets] = stream.next();
    EXPECT_TRUE(inputs.sizes().equals({3, 5}));
    EXPECT_TRUE(at::equal(inputs.add(1), targets));
    EXPECT_TRUE(at::equal(inputs.narrow(1, 1, 4), targets.narrow(1, 0, 4)));
  }
}

TEST(BatchStream, IsTheSameForTheSameSeed) {
  const Text text("abcdefghijklmnopqrstuvwxyz");
  BatchStream first(text, 3, 5, 1), same(text, 3, 5, 1), other(text, 3, 5, 2);
  bool differs = false;
  for (int i = 0; i < 100; ++i) {
    const at::Tensor inputs = first.next().inputs;
    EXPECT_TRUE(at::equal(inputs, same.next().inputs));
    differs = differs || !at::equal(inputs, other.next().inputs);
  }
  EXPECT_TRUE(differs);
}

TEST(BatchStream, RefusesAShortText) {
  EXPECT_THAT([] { BatchStream(Text("too short"), 1, 5, 1); },
              ThrowsMessage<UsageError>(HasSubstr("the text has 9 characters, and at least 10 are needed")));
}

}  // namespace
}  // namespace pianola::demo
