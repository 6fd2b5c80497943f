#include <pianola/core/display_width.hpp>

#include <gtest/gtest.h>

namespace pianola::display_width_test {
namespace {

TEST(DisplayWidth, CountsCharactersNotBytes) {
  EXPECT_EQ(display_width(""), 0U);
  EXPECT_EQ(display_width("kernel"), 6U);
  EXPECT_EQ(display_width("Übung µs"), 8U);
}

TEST(DisplayWidth, CountsWideCharactersTwiceAndCombiningMarksNever) {
  EXPECT_EQ(display_width("日本"), 4U);
  EXPECT_EQ(display_width("e\u0301"), 1U);
}

TEST(DisplayWidth, CountsBytesThatAreNotUtf8AsOneEach) {
  EXPECT_EQ(display_width("\xff\xfe"), 2U);
  EXPECT_EQ(display_width("a\xc3"), 2U);
  EXPECT_EQ(display_width("\xe2\x82z"), 3U);
}

TEST(Shorten, KeepsWhatFitsAndMarksWhatWasCut) {
  EXPECT_EQ(shorten("kernel", 6), "kernel");
  EXPECT_EQ(shorten("kernels", 6), "kerne…");
  EXPECT_EQ(shorten("kernels", 0), "");
}

TEST(Shorten, NeverCutsACharacter) {
  EXPECT_EQ(shorten("日本語", 4), "日…");
  EXPECT_EQ(shorten("äöüß", 3), "äö…");
}

TEST(Pad, FillsByWidthOnScreen) {
  EXPECT_EQ(pad("ä", 3, Align::left), "ä  ");
  EXPECT_EQ(pad("日", 3, Align::right), " 日");
  EXPECT_EQ(pad("longer", 3, Align::left), "longer");
}

TEST(OneLine, ReplacesControlCharacters) { EXPECT_EQ(one_line("a\nb\tc\x7f"), "a b c "); }

TEST(PrintableTest, LeavesTextsAndReplacesWhatIsNone) {
  for (const char* text : {"", "plain", "naïve — 北京 🎹", "two\nlines\tand a tab"}) EXPECT_EQ(printable(text), text);
  EXPECT_EQ(printable("\x01\x7F\r"), "???");
  EXPECT_EQ(printable("a\xff\xc3"), "a??");
  EXPECT_EQ(printable("\xc0\x80 \xe0\x80\x80 \xed\xa0\x80 \xf4\x90\x80\x80"), "?? ??? ??? ????");
}

}  // namespace
}  // namespace pianola::display_width_test
