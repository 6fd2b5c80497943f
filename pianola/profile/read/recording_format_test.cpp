#include <pianola/profile/read/recording_format.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>

namespace pianola::profiling::recording_format_test {
namespace {

TEST(RecordingFormatTest, SmallNumbersTakeOneByte) {
  std::string bytes;
  append_number(bytes, 127);
  EXPECT_EQ(bytes, "\x7F");
  append_number(bytes, 300);  // 300 = 2 * 128 + 44
  EXPECT_EQ(bytes, "\x7F\xAC\x02");
  bytes.clear();
  append_signed(bytes, -1);
  append_signed(bytes, 63);
  EXPECT_EQ(bytes, "\x01\x7E");
}

TEST(RecordingFormatTest, EveryNumberComesBack) {
  std::string bytes;
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  const std::int64_t least = std::numeric_limits<std::int64_t>::min(),
                     largest = std::numeric_limits<std::int64_t>::max();
  append_number(bytes, 0);
  append_number(bytes, most);
  append_signed(bytes, least);
  append_signed(bytes, largest);
  append_signed(bytes, -300);
  append_text(bytes, "name");
  ByteReader reader(bytes);
  EXPECT_EQ(reader.number(), 0U);
  EXPECT_EQ(reader.number(), most);
  EXPECT_EQ(reader.signed_number(), least);
  EXPECT_EQ(reader.signed_number(), largest);
  EXPECT_EQ(reader.signed_number(), -300);
  EXPECT_EQ(reader.text(), "name");
  EXPECT_TRUE(reader.done());
  EXPECT_FALSE(reader.failed());
}

TEST(RecordingFormatTest, WhatIsNotThereFails) {
  ByteReader unfinished("\x80");
  EXPECT_EQ(unfinished.number(), 0U);
  EXPECT_TRUE(unfinished.failed());
  ByteReader endless("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF");
  (void)endless.number();
  EXPECT_TRUE(endless.failed());
  ByteReader text(std::string_view("\x05no", 3));
  EXPECT_EQ(text.text(), "");
  EXPECT_TRUE(text.failed());
}

TEST(RecordingFormatTest, AKernelOfAStepTakesAtMostSixteenBytes) {
  DeviceWork work{.time = {.begin = 1'700'000'000'000'000'000, .end = 1'700'000'000'000'003'000},
                  .name = 40,
                  .stream = 7,
                  .correlation = 12'345};
  std::string bytes;
  Previous previous;
  append(bytes, previous, work);
  const std::size_t first = bytes.size();
  work.time = {.begin = work.time.end + 1500, .end = work.time.end + 4500};
  work.correlation += 2;
  append(bytes, previous, work);
  EXPECT_LE(bytes.size() - first, 16U);

  ByteReader reader(bytes);
  Previous before;
  DeviceWork back;
  take(reader, before, back);
  take(reader, before, back);
  EXPECT_EQ(back.time, work.time);
  EXPECT_EQ(back.correlation, work.correlation);
  EXPECT_TRUE(reader.done());
}

}  // namespace
}  // namespace pianola::profiling::recording_format_test
