#include <pianola/core/error.hpp>
#include <pianola/profile/read/chrome_trace.hpp>
#include <pianola/profile/testing/step_trace.hpp>
#include <pianola/profile/testing/synthetic_trace.hpp>
#include <pianola/profile/testing/trace_file.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#if PIANOLA_WITH_ZLIB
#include <zlib.h>
#endif

#include <sys/stat.h>

#include <cstddef>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace pianola::bad_chrome_trace_test {
namespace {

using profiling::kStepTrace;
using profiling::TraceFile;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

Timeline read(const std::string& text) {
  const TraceFile file(text);
  return read_chrome_trace(file.path());
}

std::vector<std::string> names_of_work(const Timeline& timeline) {
  std::vector<std::string> names;
  for (const DeviceWork& work : timeline.work) names.push_back(timeline.name(work.name));
  return names;
}

TEST(BadChromeTraceTest, KeepsWhatCameBeforeTheFileWasCut) {
  const std::string whole = kStepTrace.substr(0, kStepTrace.find(R"(  {"ph": "X", "cat": "gpu_memcpy")"));
  const std::string cut = whole + R"({"ph": "X", "cat": "gpu_mem)";
  const Timeline timeline = read(cut);
  EXPECT_THAT(names_of_work(timeline), ElementsAre("gemm<float>"));
  EXPECT_EQ(timeline.calls.size(), 4u);
  EXPECT_THAT(timeline.notes,
              ElementsAre("the file is cut off at byte " + std::to_string(cut.size()) + ": what came before was read"));
}

TEST(BadChromeTraceTest, CutAnywhereIsReadOrRefusedButNeverReadAsWhole) {
  const std::size_t end = kStepTrace.find_last_of('}');
  int read_in_part = 0;
  for (std::size_t size = 1; size <= end; size += 7) {
    const TraceFile file(kStepTrace.substr(0, size));
    try {
      EXPECT_THAT(read_chrome_trace(file.path()).notes, ::testing::Contains(HasSubstr("cut off at byte"))) << size;
      ++read_in_part;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("cut off before its first event")) << size;
    }
  }
  EXPECT_GT(read_in_part, 400);
}

TEST(BadChromeTraceTest, KeepsWhatCameBeforeAPlaceThatIsNoJson) {
  const std::string good =
      R"({"traceEvents": [{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 5, "dur": 1}, )";
  const Timeline timeline = read(good + R"({"ph": "X", "cat": "user_annotation", "name": "say "hi"", "ts": 6}]})");
  EXPECT_THAT(names_of_work(timeline), ElementsAre("gemm"));
  const std::size_t place =
      good.size() + std::string(R"({"ph": "X", "cat": "user_annotation", "name": "say "h)").size();
  ASSERT_EQ(timeline.notes.size(), 1u);
  EXPECT_THAT(timeline.notes[0], AllOf(HasSubstr("the file is no JSON from byte " + std::to_string(place) + " on ("),
                                       HasSubstr("): what came before was read")));
}

struct Refused {
  const char* name;
  const char* text;
  const char* what;
  const char* fix;
};
class BadChromeTraceTable : public ::testing::TestWithParam<Refused> {};
TEST_P(BadChromeTraceTable, SaysWhatIsWrongWithTheFile) {
  const TraceFile file(GetParam().text);
  EXPECT_THAT([&] { (void)read_chrome_trace(file.path()); },
              ThrowsMessage<UsageError>(
                  AllOf(HasSubstr(file.path().string()), HasSubstr(GetParam().what), HasSubstr(GetParam().fix))));
}
INSTANTIATE_TEST_SUITE_P(
    Files, BadChromeTraceTable,
    ::testing::Values(
        Refused{"Empty", "", "is empty", "record it again"},
        Refused{"NotJson", "hello", "is no Chrome trace: it is not JSON", "where: byte 1: "},
        Refused{"NotJsonInside", R"({"traceEvents": hello})", "it is not JSON", "where: byte 17: "},
        Refused{"Blank", "  \n", "it is not JSON", "export_chrome_trace()"},
        Refused{"Number", "42", "is JSON, but no Chrome trace: it has no \"traceEvents\"", "export_chrome_trace()"},
        Refused{"OtherJson", R"({"results": [{"name": "x"}]})", "it has no \"traceEvents\"", "export_chrome_trace()"},
        Refused{"OtherArray", R"([{"name": "x"}, 5])", "has no events", "export_chrome_trace()"},
        Refused{"NoEvents", R"({"traceEvents": []})", "has no events", "record it again"},
        Refused{"EventsAreNoList", R"({"traceEvents": {"a": [{"ph": "X"}]}})", "it has no \"traceEvents\"", ""},
        Refused{"CutEarly", R"({"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "kern)",
                "is cut off before its first event ends", "where: byte 61"}),
    [](const auto& file) { return std::string(file.param.name); });

// A good event, and one whose time cannot be right.
std::string trace_with(const std::string& category, const std::string& time, const std::string& duration) {
  return R"({"traceEvents": [{"ph": "X", "cat": "kernel", "name": "good", "pid": 0, "tid": 7, "ts": 5, "dur": 1},
      {"ph": "X", "cat": ")" +
         category + R"(", "name": "bad", "pid": 0, "tid": 7, "ts": )" + time + R"(, "dur": )" + duration + "}]}";
}

struct WrongTime {
  const char* name;
  const char* time;
  const char* duration;
  const char* what;
};
class BadTimeTable : public ::testing::TestWithParam<WrongTime> {};
TEST_P(BadTimeTable, IsRefusedWithFileAndEvent) {
  for (const char* category : {"kernel", "gpu_memcpy", "cuda_runtime", "user_annotation", "cpu_op"}) {
    const TraceFile file(trace_with(category, GetParam().time, GetParam().duration));
    EXPECT_THAT([&] { (void)read_chrome_trace(file.path()); },
                ThrowsMessage<UsageError>(AllOf(
                    HasSubstr("the Chrome trace '" + file.path().string() + "' has a time that cannot be right: "),
                    HasSubstr(GetParam().what), HasSubstr("where: event 2, 'bad'"), HasSubstr("record it again"))))
        << category;
  }
}
INSTANTIATE_TEST_SUITE_P(Times, BadTimeTable,
                         ::testing::Values(WrongTime{"Negative", "5", "-0.001", "it ends before it begins"},
                                           WrongTime{"NegativeInWholeNumbers", "5", "-1", "it ends before it begins"},
                                           WrongTime{"LeastBegin", "-9223372036854775.808", "1", "95 years"},
                                           WrongTime{"LargestBegin", "9223372036854775.807", "1", "95 years"},
                                           WrongTime{"LargestInteger", "9223372036854775807", "1", "95 years"},
                                           WrongTime{"LargerThanIntegers", "18446744073709551616", "1", "95 years"},
                                           WrongTime{"LargestDuration", "5", "9223372036854775807", "95 years"},
                                           WrongTime{"BothLarge", "2999999999999999", "2999999999999999", "95 years"},
                                           WrongTime{"WithAnExponent", "1e300", "1", "95 years"},
                                           WrongTime{"ADecade", "5", "315360000000000", "it takes more than a year"},
                                           WrongTime{"AnotherClock", "1790857026000000.5", "1",
                                                     "more than a year away"}),
                         [](const auto& wrong) { return std::string(wrong.param.name); });

TEST(BadChromeTraceTest, RefusesTimesOfTheAllocatorThatCannotBeRight) {
  EXPECT_THAT(
      [] {
        (void)read(R"({"traceEvents": [{"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1,
            "ts": 1e40, "args": {"Bytes": 5, "Device Id": 0, "Device Type": 1, "Addr": 7}}]})");
      },
      ThrowsMessage<UsageError>(HasSubstr("where: event 1, '[memory]'")));
}

TEST(BadChromeTraceTest, RefusesTimesOfTheWholeFileThatCannotBeRight) {
  const std::string events = R"("traceEvents": [{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7,
      "ts": 1790857026000000.5, "dur": 1}]})";
  const auto refusal = [&](const std::string& key) {
    return [&events, key] { (void)read("{" + key + ", " + events); };
  };
  EXPECT_THAT(refusal(R"("baseTimeNanoseconds": 9223372036854775807)"),
              ThrowsMessage<UsageError>(HasSubstr("where: \"baseTimeNanoseconds\": 9223372036854775807")));
  EXPECT_THAT(refusal(R"("baseTimeNanoseconds": 2999999999999999999)"),
              ThrowsMessage<UsageError>(HasSubstr("where: all events, moved by \"baseTimeNanoseconds\"")));
  EXPECT_THAT(refusal(R"("pianolaUnrecordedNanoseconds": 2999999999999999999)"),
              ThrowsMessage<UsageError>(HasSubstr("it takes more than a year")));
}

TEST(BadChromeTraceTest, RefusesANumberThatIsTooLargeForAny) {
  const std::string text =
      R"({"traceEvents": [{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": )";
  EXPECT_THAT([&] { (void)read(text + "1e400, \"dur\": 1}]}"); },
              ThrowsMessage<UsageError>(
                  AllOf(HasSubstr("has the number 1e400, which is too large for any"), HasSubstr("where: byte "))));
}

TEST(BadChromeTraceTest, KeepsWhatCameBeforeWordsThatAreNoNumbers) {
  for (const char* word : {"NaN", "Infinity", "-Infinity"}) {
    const Timeline timeline = read(trace_with("kernel", word, "1"));
    EXPECT_THAT(names_of_work(timeline), ElementsAre("good")) << word;
    EXPECT_THAT(timeline.notes, ElementsAre(HasSubstr("the file is no JSON from byte "))) << word;
  }
}

TEST(BadChromeTraceTest, RefusesWhatIsNestedTooDeep) {
  for (const std::string open : {"[", "{\"a\":"}) {
    std::string text = R"({"traceEvents": [{"args": )";
    for (int i = 0; i < 200'000; ++i) text += open;
    EXPECT_THAT([&] { (void)read(text); },
                ThrowsMessage<UsageError>(AllOf(HasSubstr("is nested more than 1000 deep"), HasSubstr("event 1"))));
  }
}

TEST(BadChromeTraceTest, ManyProcessesTakeLittleTime) {
  std::string text = "[";
  for (int i = 0; i < 60'000; ++i) {
    text += R"({"ph": "X", "cat": "cpu_op", "name": "aten::add", "tid": 1, "ts": 5, "dur": 1, "pid": )" +
            std::to_string(i) + "},";
  }
  EXPECT_EQ(read(text).ranges.size(), 60'000u);  // A search through a list takes half a minute.
}

TEST(BadChromeTraceTest, RefusesAPipe) {
  const TraceFile pipe;
  ASSERT_EQ(mkfifo(pipe.path().c_str(), 0600), 0);
  EXPECT_THAT([&] { (void)read_chrome_trace(pipe.path()); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("is a pipe or a device"), HasSubstr("to a file"))));
}

TEST(BadChromeTraceTest, RefusesAFileThatIsNotThere) {
  const TraceFile none;
  EXPECT_THAT([&] { (void)read_chrome_trace(none.path()); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("there is no trace file '" + none.path().string() + "'"),
                                              HasSubstr("check the path"))));
}

TEST(BadChromeTraceTest, RefusesAFolder) {
  EXPECT_THAT([] { (void)read_chrome_trace(::testing::TempDir()); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("is a folder, not a trace file"), HasSubstr("*.json.gz"))));
}

#if PIANOLA_WITH_ZLIB

std::string gzip(const std::string& text) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::vector<unsigned char> in(text.begin(), text.end());
  std::string packed(deflateBound(&stream, in.size()), '\0');
  std::vector<unsigned char> out(packed.size());
  stream.next_in = in.data();
  stream.avail_in = static_cast<unsigned>(in.size());
  stream.next_out = out.data();
  stream.avail_out = static_cast<unsigned>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.assign(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(stream.total_out));
  (void)deflateEnd(&stream);
  return packed;
}

TEST(ChromeTraceGzipTest, IsReadLikeAPlainFile) {
  const Timeline timeline = read(gzip(kStepTrace));
  EXPECT_EQ(timeline.work.size(), 5u);
  EXPECT_EQ(timeline.calls.size(), 4u);
  EXPECT_EQ(timeline.ranges.size(), 4u);
  EXPECT_THAT(timeline.notes, IsEmpty());
}

TEST(ChromeTraceGzipTest, CutOffKeepsWhatCameBefore) {
  const TraceFile plain;
  profiling::write_synthetic_trace(plain.path(), 6000);
  std::ifstream stream(plain.path(), std::ios::binary);
  const std::string packed = gzip({std::istreambuf_iterator<char>(stream), {}});
  const Timeline timeline = read(packed.substr(0, packed.size() / 2));
  EXPECT_GT(timeline.work.size(), 300u);
  EXPECT_LT(timeline.work.size(), 800u);
  ASSERT_EQ(timeline.notes.size(), 1u);
  EXPECT_THAT(timeline.notes[0], AllOf(HasSubstr("the file is cut off at byte "), HasSubstr(" of the unpacked text")));
}

TEST(ChromeTraceGzipTest, DamagedIsRefused) {
  std::string packed = gzip(kStepTrace);
  for (std::size_t i = packed.size() / 2; i < packed.size() / 2 + 40; ++i) packed[i] = '\x55';
  EXPECT_THAT([&] { (void)read(packed); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("cannot be read to its end: "), HasSubstr("gzip -t FILE"),
                                              HasSubstr(" of the unpacked text"))));
}

TEST(ChromeTraceGzipTest, WithAWrongChecksumIsRefused) {
  std::string packed = gzip(kStepTrace);
  packed[packed.size() - 8] = static_cast<char>(packed[packed.size() - 8] ^ 1);
  EXPECT_THAT([&] { (void)read(packed); }, ThrowsMessage<UsageError>(HasSubstr("incorrect data check")));
}

TEST(ChromeTraceGzipTest, ThatUnpacksToMuchMoreThanATraceIsRefused) {
  const std::string blanks = gzip(std::string(std::size_t{1} << 20U, ' '));
  std::string bomb = gzip("[");  // What one file after another unpacks to is one text.
  for (int mebibytes = 0; mebibytes < 70; ++mebibytes) bomb += blanks;
  EXPECT_THAT([&] { (void)read(bomb); },
              ThrowsMessage<UsageError>(HasSubstr("it unpacks to more than 250 times its size, as no trace does")));
}

TEST(ChromeTraceGzipTest, OfNothingIsRefused) {
  EXPECT_THAT([] { (void)read(gzip("")); }, ThrowsMessage<UsageError>(HasSubstr("is empty once unpacked")));
  EXPECT_THAT([] { (void)read(gzip(kStepTrace).substr(0, 12)); },
              ThrowsMessage<UsageError>(HasSubstr("is empty once unpacked")));
}

#else

TEST(ChromeTraceGzipTest, IsRefusedWithoutZlib) {
  EXPECT_THAT([] { (void)read(std::string("\x1f\x8b\x08\x00", 4)); },
              ThrowsMessage<UsageError>(
                  AllOf(HasSubstr("is compressed with gzip, and this build has no zlib"), HasSubstr("gzip -dk FILE"))));
}

#endif

}  // namespace
}  // namespace pianola::bad_chrome_trace_test
