#include <pianola/profile/read/recording.hpp>

#include <pianola/core/error.hpp>
#include <pianola/profile/read/recorder_status.hpp>
#include <pianola/profile/read/recording_format.hpp>
#include <pianola/profile/record/recording_writer.hpp>
#include <pianola/profile/testing/temporary_folder.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>

namespace pianola::recording_test {
namespace {

using profiling::RecordingStart;
using profiling::RecordingWriter;
using profiling::TemporaryFolder;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

constexpr std::uint64_t kMegabyte = 1'000'000;

std::unique_ptr<RecordingWriter> open(const std::string& path, const RecordingStart& start = {.process_id = 7},
                                      std::uint64_t max_bytes = 100 * kMegabyte) {
  auto opening = RecordingWriter::open(path, start, max_bytes);
  EXPECT_EQ(opening.problem, "");
  return std::move(opening.writer);
}

// Kernels of 2 us, 5 us from begin to begin.
void add_kernels(RecordingWriter& writer, int count, Nanoseconds begin = 1000) {
  const NameId name = writer.name("_ZN2at6native6kernelIfEEvi");
  for (int i = 0; i < count; ++i) {
    const Nanoseconds at = begin + 5000 * i;
    writer.add(DeviceWork{.time = {.begin = at, .end = at + 2000},
                          .name = name,
                          .stream = 7,
                          .correlation = static_cast<std::uint64_t>(i) + 1});
  }
}

class RecordingTest : public ::testing::Test {
 protected:
  TemporaryFolder folder;
  const std::string path = folder / "7.pianola";
};

TEST_F(RecordingTest, AllThatWasWrittenComesBack) {
  {
    const auto writer = open(path, {.process_id = 7, .clock = 500, .wall = 500});
    writer->add_device(1, "NVIDIA H200");
    writer->add(DeviceWork{.time = {.begin = 3000, .end = 4000},
                           .name = writer->name("Memcpy HtoD (Pinned -> Device)"),
                           .kind = DeviceWork::Kind::copy,
                           .device = 1,
                           .stream = 13,
                           .correlation = 90,
                           .graph = 4,
                           .bytes = 4096});
    writer->add(HostCall{.time = {.begin = 1000, .end = 1700},
                         .name = writer->name("cudaGraphLaunch"),
                         .kind = HostCall::Kind::graph_launch,
                         .thread = 421,
                         .correlation = 90});
    writer->add(HostRange{.time = {.begin = 900, .end = 5000}, .name = writer->name("step"), .thread = 421});
    writer->finish();
  }
  const Timeline timeline = read_recording(path);
  EXPECT_THAT(timeline.notes, IsEmpty());
  EXPECT_EQ(timeline.source, "recording of process 7");
  EXPECT_EQ(timeline.device_name, "NVIDIA H200");
  ASSERT_EQ(timeline.work.size(), 1U);
  const DeviceWork& work = timeline.work[0];
  EXPECT_EQ(work.time, (TimeSpan{2100, 3100})) << "the timeline begins at 0, with the range";
  EXPECT_EQ(timeline.name(work.name), "Memcpy HtoD (Pinned -> Device)");
  EXPECT_EQ(work.kind, DeviceWork::Kind::copy);
  EXPECT_EQ(work.device, 1);
  EXPECT_EQ(work.stream, 13);
  EXPECT_EQ(work.correlation, 90U);
  EXPECT_EQ(work.graph, 4U);
  EXPECT_EQ(work.bytes, 4096U);
  ASSERT_EQ(timeline.calls.size(), 1U);
  EXPECT_EQ(timeline.calls[0].time, (TimeSpan{100, 800}));
  EXPECT_EQ(timeline.name(timeline.calls[0].name), "cudaGraphLaunch");
  EXPECT_EQ(timeline.calls[0].kind, HostCall::Kind::graph_launch);
  EXPECT_EQ(timeline.calls[0].thread, 421);
  ASSERT_EQ(timeline.ranges.size(), 1U);
  EXPECT_EQ(timeline.ranges[0].time, (TimeSpan{0, 4100}));
  EXPECT_EQ(timeline.name(timeline.ranges[0].name), "step");
}

TEST_F(RecordingTest, NamesOfKernelsAreDemangled) {
  const auto writer = open(path);
  add_kernels(*writer, 1);
  writer->finish();
  const Timeline timeline = read_recording(path);
  EXPECT_EQ(timeline.name(timeline.work.at(0).name), "void at::native::kernel<float>(int)");
}

TEST_F(RecordingTest, ManyBlocksAreReadInOrder) {
  const auto writer = open(path);
  add_kernels(*writer, 100'000);
  writer->finish();
  EXPECT_LT(profiling::contents(path).size(), 1'700'000U);
  const Timeline timeline = read_recording(path);
  ASSERT_EQ(timeline.work.size(), 100'000U);
  EXPECT_EQ(timeline.work.back().time, (TimeSpan{5000 * 99'999, 5000 * 99'999 + 2000}));
  EXPECT_EQ(timeline.work.back().correlation, 100'000U);
}

TEST_F(RecordingTest, WithoutItsEndItSaysSo) {
  auto writer = open(path);
  add_kernels(*writer, 10);
  writer->write();
  add_kernels(*writer, 5, 100'000);
  writer.reset();
  const Timeline timeline = read_recording(path);
  EXPECT_EQ(timeline.work.size(), 10U);
  EXPECT_THAT(timeline.notes, ElementsAre(HasSubstr("the process ended before the recording did")));
}

TEST_F(RecordingTest, ACutLastBlockIsLeftOut) {
  {
    const auto writer = open(path);
    add_kernels(*writer, 10);
    writer->write();
    add_kernels(*writer, 10, 100'000);
    writer->write();
  }
  const std::string whole = profiling::contents(path);
  for (const std::size_t less : {1U, 30U}) {
    profiling::write_file(path, std::string_view(whole).substr(0, whole.size() - less));
    const Timeline timeline = read_recording(path);
    EXPECT_EQ(timeline.work.size(), 10U) << less;
    EXPECT_THAT(timeline.notes, ElementsAre(HasSubstr("the process ended before the recording did"))) << less;
  }
}

// Of each length a file can be cut to, none fails and none invents work.
TEST_F(RecordingTest, AFileCutAnywhereIsReadAsFarAsItGoes) {
  {
    const auto writer = open(path);
    writer->add_device(0, "NVIDIA H200");
    add_kernels(*writer, 5);
    writer->finish();
  }
  const std::string whole = profiling::contents(path);
  for (std::size_t size = 32; size < whole.size(); ++size) {
    profiling::write_file(path, std::string_view(whole).substr(0, size));
    const Timeline timeline = read_recording(path);
    EXPECT_TRUE(timeline.work.empty() || timeline.work.size() == 5) << size;
    EXPECT_THAT(timeline.notes, ElementsAre(HasSubstr("ended before"))) << size;
  }
}

TEST_F(RecordingTest, DamageEndsTheReadingWithItsPlace) {
  {
    const auto writer = open(path);
    add_kernels(*writer, 10);
    writer->finish();
  }
  std::string bytes = profiling::contents(path);
  bytes[32] = 99;  // the kind of the first block
  profiling::write_file(path, bytes);
  EXPECT_THAT(read_recording(path).notes,
              Contains(AllOf(HasSubstr("7.pianola"), HasSubstr("damaged from byte 32 on"))));
}

TEST_F(RecordingTest, AKilledProcessLeavesWhatItHadWritten) {
  const pid_t child = fork();
  if (child == 0) {
    const auto writer = open(path);
    add_kernels(*writer, 50'000);
    writer->write();
    add_kernels(*writer, 10, 900'000'000);
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  const Timeline timeline = read_recording(path);
  EXPECT_EQ(timeline.work.size(), 50'000U);
  EXPECT_THAT(timeline.notes, ElementsAre(HasSubstr("the process ended before the recording did")));
}

TEST_F(RecordingTest, AFullFileKeepsWhatCameFirstAndSaysSo) {
  {
    const auto writer = open(path, {.process_id = 7}, kMegabyte);
    add_kernels(*writer, 400'000);
    EXPECT_FALSE(writer->is_taking());
    EXPECT_EQ(writer->problem(), "");
    writer->finish();
  }
  EXPECT_LE(profiling::contents(path).size(), kMegabyte);
  EXPECT_GE(profiling::contents(path).size(), kMegabyte * 9 / 10);
  const Timeline timeline = read_recording(path);
  EXPECT_GT(timeline.work.size(), 10'000U);
  EXPECT_THAT(timeline.notes, ElementsAre("the recording reached its limit of 1 MB: what came later is missing"));
}

TEST_F(RecordingTest, AFullDiskEndsTheRecordingWithAReason) {
  auto opening = RecordingWriter::open("/dev/full", {}, kMegabyte);
  EXPECT_EQ(opening.writer, nullptr);
  EXPECT_EQ(opening.problem, "cannot write '/dev/full': No space left on device");
}

TEST_F(RecordingTest, AFileThatCannotBeCreatedIsNamed) {
  const auto opening = RecordingWriter::open(folder / "none/7.pianola", {}, kMegabyte);
  EXPECT_EQ(opening.writer, nullptr);
  EXPECT_THAT(opening.problem,
              AllOf(HasSubstr("cannot create"), HasSubstr("none/7.pianola"), HasSubstr("No such file")));
}

TEST_F(RecordingTest, DroppedRecordsAreAddedUp) {
  const auto writer = open(path);
  writer->add_dropped(3);
  add_kernels(*writer, 1);
  writer->add_dropped(4);
  writer->add_note("a sentence");
  writer->finish();
  EXPECT_THAT(read_recording(path).notes, ElementsAre("a sentence", HasSubstr("7 records were dropped")));
}

TEST_F(RecordingTest, TooManyNamesShareOne) {
  const auto writer = open(path);
  NameId last = 0;
  for (std::size_t i = 0; i < RecordingWriter::kMostNames + 5; ++i) last = writer->name("step " + std::to_string(i));
  EXPECT_EQ(last, RecordingWriter::kMostNames);
  writer->add(HostRange{.time = {.begin = 1, .end = 2}, .name = last});
  writer->finish();
  const Timeline timeline = read_recording(path);
  EXPECT_EQ(timeline.name(timeline.ranges.at(0).name), "(one of too many names)");
}

TEST_F(RecordingTest, ALongNameIsCutBetweenCharacters) {
  const auto writer = open(path);
  const std::string most(RecordingWriter::kMostNameBytes - 1, 'x');
  writer->add(HostRange{.time = {.begin = 1, .end = 2}, .name = writer->name(most + "\xC3\xA4")});
  writer->finish();
  const Timeline timeline = read_recording(path);
  EXPECT_EQ(timeline.name(timeline.ranges.at(0).name), most);
}

TEST_F(RecordingTest, CallsOfTheDriverInsideTheRuntimeAreCountedOnce) {
  const auto writer = open(path);
  writer->add(HostCall{.time = {.begin = 12, .end = 18}, .name = writer->name("cuLaunchKernel"), .correlation = 5});
  writer->add(HostCall{.time = {.begin = 10, .end = 20}, .name = writer->name("cudaLaunchKernel"), .correlation = 5});
  writer->finish();
  const Timeline timeline = read_recording(path);
  ASSERT_EQ(timeline.calls.size(), 1U);
  EXPECT_EQ(timeline.name(timeline.calls[0].name), "cudaLaunchKernel");
}

TEST_F(RecordingTest, OtherFilesAreRefused) {
  EXPECT_THAT([&] { (void)read_recording(folder / "none"); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("cannot open"), HasSubstr("No such file"), HasSubstr("fix:"))));
  profiling::write_file(path, "{\"traceEvents\": []} and so on, long enough for a header");
  EXPECT_THAT([&] { (void)read_recording(path); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("7.pianola' is no recording of `pianola profile`"),
                                              HasSubstr("give a file or a folder"))));
  profiling::write_file(path, "");
  EXPECT_THAT([&] { (void)read_recording(path); }, ThrowsMessage<UsageError>(HasSubstr("is no recording")));
  open(path)->finish();
  std::string bytes = profiling::contents(path);
  bytes[8] = 2;
  profiling::write_file(path, bytes);
  EXPECT_THAT([&] { (void)read_recording(path); },
              ThrowsMessage<UsageError>(HasSubstr("has version 2 of the format, this pianola reads version 1")));
}

// A recording of one good record and one of each kind with the times given, on a clock that needs no shift.
struct WrongTimes {
  const char* name;
  TimeSpan time;
  const char* what;
};
class RecordingTimesTable : public ::testing::TestWithParam<WrongTimes> {};
TEST_P(RecordingTimesTable, AreRefusedWithFileAndRecord) {
  for (int kind = 0; kind < 3; ++kind) {
    const TemporaryFolder folder;
    const std::string path = folder / "7.pianola";
    const auto writer = open(path, {.process_id = 7});
    const NameId name = writer->name("gemm");
    const auto add = [&](TimeSpan time) {
      if (kind == 0) writer->add(DeviceWork{.time = time, .name = name});
      if (kind == 1) writer->add(HostCall{.time = time, .name = name});
      if (kind == 2) writer->add(HostRange{.time = time, .name = name});
    };
    add({1000, 2000});
    add(GetParam().time);
    writer->finish();
    EXPECT_THAT([&] { (void)read_recording(path); },
                ThrowsMessage<UsageError>(
                    AllOf(HasSubstr("the recording '" + path + "' has a time that cannot be right: "),
                          HasSubstr(GetParam().what), HasSubstr("where: record 2 of the block at byte "))))
        << kind;
  }
}
constexpr Nanoseconds kMost = std::numeric_limits<Nanoseconds>::max();
INSTANTIATE_TEST_SUITE_P(Times, RecordingTimesTable,
                         ::testing::Values(WrongTimes{"Backwards", {5000, 4999}, "it ends before it begins"},
                                           WrongTimes{"ToTheMost", {5000, kMost}, "95 years"},
                                           WrongTimes{"AtTheMost", {kMost, kMost}, "95 years"},
                                           WrongTimes{"FromTheLeast", {-kMost, 0}, "95 years"},
                                           WrongTimes{"ADecade", {5000, 315'360'000'000'000'000}, "more than a year"}),
                         [](const auto& wrong) { return std::string(wrong.param.name); });

TEST_F(RecordingTest, AClockOfTheHeaderThatCannotBeRightIsRefused) {
  for (const std::size_t place : {16U, 24U}) {
    open(path)->finish();
    std::string bytes = profiling::contents(path);
    bytes[place + 7] = '\x7F';
    profiling::write_file(path, bytes);
    EXPECT_THAT([&] { (void)read_recording(path); },
                ThrowsMessage<UsageError>(
                    AllOf(HasSubstr("7.pianola' has a time that cannot be right"), HasSubstr("where: its header"))));
  }
}

// A name, a kind, a device beyond what their types hold would be another one.
TEST_F(RecordingTest, MoreBytesThanAnyMemoryHasAreDamage) {
  const auto writer = open(path);
  writer->add(DeviceWork{.time = {1000, 2000}, .name = writer->name("Memcpy"), .bytes = std::uint64_t{1} << 60U});
  writer->finish();
  EXPECT_THAT(read_recording(path).notes, Contains(HasSubstr("is damaged from byte")));
}

TEST_F(RecordingTest, ANumberTooLargeForItsFieldIsDamage) {
  std::string record;
  profiling::append_signed(record, 1000);
  profiling::append_signed(record, 10);
  profiling::append_number(record, std::uint64_t{1} << 32U);  // the name: not 0
  for (int field = 0; field < 6; ++field) profiling::append_number(record, 0);
  const auto writer = open(path);
  (void)writer->name("gemm");
  writer->finish();
  std::string bytes = profiling::contents(path);
  const profiling::BlockHeader block{
      .kind = profiling::BlockKind::work, .bytes = static_cast<std::uint32_t>(record.size()), .records = 1};
  std::string header(reinterpret_cast<const char*>(&block), sizeof block);
  bytes.insert(bytes.size() - sizeof block, header + record);  // before the end's
  profiling::write_file(path, bytes);
  const Timeline timeline = read_recording(path);
  EXPECT_THAT(timeline.work, IsEmpty());
  EXPECT_THAT(timeline.notes, Contains(HasSubstr("is damaged from byte")));
}

class RecordingsTest : public ::testing::Test {
 protected:
  void record(std::uint32_t process, const RecordingStart& start, int kernels, Nanoseconds begin, bool finish = true) {
    const auto writer = open(folder / (std::to_string(process) + ".pianola"), start);
    add_kernels(*writer, kernels, begin);
    writer->write();
    if (finish) writer->finish();
  }
  TemporaryFolder folder;
};

TEST_F(RecordingsTest, ProcessesAreNumberedByTheirBeginAndShareAClock) {
  // Process 9 began 1 ms before process 5, though its own clock says something else.
  record(5, {.process_id = 5, .clock = 0, .wall = 2'000'000}, 1, 500);
  record(9, {.process_id = 9, .clock = 70'000, .wall = 1'000'000}, 1, 70'000);
  const Timeline timeline = read_recordings(folder.path());
  EXPECT_THAT(timeline.source, HasSubstr("recordings of 2 processes"));
  ASSERT_EQ(timeline.work.size(), 2U);
  EXPECT_EQ(timeline.work[0].process, 0);
  EXPECT_EQ(timeline.work[0].time, (TimeSpan{0, 2000}));
  EXPECT_EQ(timeline.work[1].process, 1);
  EXPECT_EQ(timeline.work[1].time, (TimeSpan{1'000'500, 1'002'500}));
  EXPECT_EQ(timeline.work[0].name, timeline.work[1].name);
}

TEST_F(RecordingsTest, ProcessesWithoutWorkDoNotCount) {
  record(4, {.process_id = 4, .wall = 1}, 0, 0, false);
  record(5, {.process_id = 5, .wall = 2}, 3, 0);
  const Timeline timeline = read_recordings(folder.path());
  EXPECT_EQ(timeline.work.at(0).process, 0);
  EXPECT_THAT(timeline.notes, IsEmpty());
  EXPECT_THAT(timeline.source, HasSubstr("of 1 process in"));
}

TEST_F(RecordingsTest, NotesNameTheProcess) {
  record(5, {.process_id = 5, .wall = 1}, 3, 0, false);
  record(6, {.process_id = 6, .wall = 2}, 3, 0);
  profiling::write_file(folder / "8.pianola", "no recording");
  profiling::write_status(folder.path(),
                          {.process_id = 12, .problem = {.what = "another profiler is attached", .fix = "end it"}});
  const Timeline timeline = read_recordings(folder.path());
  EXPECT_EQ(timeline.work.size(), 6U);
  EXPECT_THAT(timeline.notes,
              ElementsAre(HasSubstr("8.pianola' is no recording"), HasSubstr("process 5: the process ended"),
                          "process 12: another profiler is attached"));
}

TEST_F(RecordingsTest, WithoutAnyRecordingTheReasonIsTold) {
  EXPECT_THAT(
      [&] { (void)read_recordings(folder.path()); },
      ThrowsMessage<UsageError>(AllOf(HasSubstr("there is no recording in the folder"), HasSubstr(folder.path()))));
  EXPECT_THAT([&] { (void)read_recordings(folder / "none"); }, ThrowsMessage<UsageError>(HasSubstr("no recording")));
  profiling::write_status(folder.path(),
                          {.process_id = 12, .problem = {.what = "there is no CUPTI\nlibrary", .fix = "install it"}});
  EXPECT_THAT([&] { (void)read_recordings(folder.path()); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("process 12 could not be recorded: there is no CUPTI library"),
                                              HasSubstr("fix:   install it"))));
}

}  // namespace
}  // namespace pianola::recording_test
