#include <pianola/profile/read/nsight_export.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/report.hpp>
#include <pianola/profile/analyse/analysis.hpp>
#include <pianola/profile/decide/decision.hpp>
#include <pianola/profile/read/chrome_trace.hpp>
#include <pianola/profile/read/read_profile.hpp>
#include <pianola/profile/show/chrome_writer.hpp>
#include <pianola/profile/show/profile_report.hpp>
#include <pianola/profile/testing/nsight_file.hpp>
#include <pianola/profile/testing/temporary_folder.hpp>
#include <pianola/profile/testing/timeline_builder.hpp>
#include <pianola/profile/testing/timeline_fields.hpp>
#include <pianola/profile/testing/training_timeline.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace pianola::nsight_export_test {
namespace {

using profiling::TemporaryFolder;
using profiling::TimelineBuilder;
using profiling::us;
using profiling::testing::training_timeline;
using profiling::testing::TrainingShape;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

/// A timeline as an export, in a folder of its own.
class Export {
 public:
  explicit Export(const Timeline& timeline) { profiling::write_nsight_file(timeline, path()); }

  [[nodiscard]] std::string path() const { return folder_ / "report.sqlite"; }
  [[nodiscard]] const std::string& folder() const { return folder_.path(); }
  Export& change(const std::string& statements) {
    profiling::run_sql(path(), statements);
    return *this;
  }
  [[nodiscard]] Timeline read() const { return read_nsight_export(path()); }

 private:
  TemporaryFolder folder_;
};

/// A launch of each kind, from two threads, with a wait, and ranges of all kinds.
TimelineBuilder step() {
  TimelineBuilder t;
  t.kernel("void gemm<float, 4>(float const*)", 10, 5).launched(4);
  t.copy_in(20, 4).launched(8).copy_out(30, 4).waited_for(12, 30).memset(50, 2).launched(44);
  t.on_stream(20).copy_within(60, 3).launched(48);
  t.on_stream(7).kernel("node 1", 70, 3).kernel("node 2", 74, 3).launched_by_graph(9, 2, 60);
  t.synchronize(66, 12);
  t.annotation("train", 2, 80).module("nn.Module: Linear_0", 3, 20).operation("aten::addmm", 3.5, 5);
  t.on_thread(2).backward("autograd::engine::evaluate_function: AddmmBackward0", 40, 10);
  return t;
}

Timeline named(Timeline timeline) {
  timeline.device_name = "NVIDIA H200";
  return timeline;
}

/// All that is said about a timeline, but for where it comes from.
std::string judged(Timeline timeline) {
  timeline.source = "a test";
  const Analysis analysis = analyse(timeline);
  return profile_report(timeline, analysis, decide(timeline, analysis), 50).to_json();
}

Timeline through_chrome(const Timeline& timeline) {
  const TemporaryFolder folder;
  const std::string path = folder / "trace.json";
  write_chrome_trace(timeline, {}, path);
  return read_chrome_trace(path);
}

struct Run {
  const char* name;
  TrainingShape shape;
};

class NsightExportOfTrainingTest : public ::testing::TestWithParam<Run> {};

TEST_P(NsightExportOfTrainingTest, IsJudgedAsItsChromeTraceIs) {
  const Timeline timeline = training_timeline(GetParam().shape);
  const Timeline read = Export(timeline).read();
  const Timeline traced = through_chrome(timeline);
  profiling::expect_same_events(read, traced);
  EXPECT_EQ(judged(read), judged(traced));
  EXPECT_EQ(analyse(read).by, IterationsBy::repetition);
}

INSTANTIATE_TEST_SUITE_P(Runs, NsightExportOfTrainingTest,
                         ::testing::Values(Run{"Eager", {}}, Run{"Graphed", {.graphed = true}},
                                           Run{"ThatReadsItsLoss", {.reads_loss = true, .reads_inside = true}},
                                           Run{"ThatLoadsData", {.pause = 400, .data = 300}},
                                           Run{"WithoutRanges", {.ranges = false}},
                                           Run{"OfLongKernels", {.kernel = 60}}),
                         [](const auto& run) { return std::string(run.param.name); });

TEST(NsightExportTest, HoldsAllThatHappened) {
  const Timeline timeline = named(step().build());
  const Export file(timeline);
  const Timeline read = file.read();
  profiling::expect_same_events(read, timeline);
  EXPECT_EQ(read.device_name, "NVIDIA H200");
  EXPECT_EQ(read.source, "Nsight Systems export '" + file.path() + "'");
  EXPECT_THAT(read.notes, IsEmpty());
}

TEST(NsightExportTest, KeepsBytesOfCopiesAndMemsets) {
  Timeline timeline = step().build();
  for (DeviceWork& work : timeline.work) {
    if (work.kind != DeviceWork::Kind::kernel) work.bytes = 4096;
  }
  profiling::expect_same_events(Export(timeline).read(), timeline);
}

TEST(NsightExportTest, KeepsProcessesApart) {
  TimelineBuilder t = step();
  t.in_process(1).kernel("other", 10, 5).launched(5);
  const Timeline timeline = t.build();
  const Timeline read = Export(timeline).read();
  profiling::expect_same_events(read, timeline);
  EXPECT_THAT(read.notes, ElementsAre("processes by number: 0 is 4000, 1 is 4001"));
}

TEST(NsightExportTest, OfSeveralProcessesThatDoNotSayWhoseWorkItIsIsToldByItsCall) {
  TimelineBuilder t;
  t.kernel("one", 10, 5).launched(4).in_process(1).kernel("other", 10, 5).launched(5);
  Export file(t.build());
  file.change("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN globalPid");
  profiling::expect_same_events(file.read(), t.build());
}

TEST(NsightExportTest, IsReadByProfilesWhateverItsName) {
  const Export file(step().build());
  const std::string other = file.folder() + "/profile.db";
  std::filesystem::rename(file.path(), other);
  EXPECT_EQ(read_profile(other).work.size(), 7U);
}

TEST(NsightExportTest, IsFoundUnderANameThatAUriWouldTakeForSomethingElse) {
  const Export file(step().build());
  const std::string other = file.folder() + "/50% of #1, who?mode=memory ü.sqlite";
  std::filesystem::rename(file.path(), other);
  EXPECT_EQ(read_nsight_export(other).work.size(), 7U);
}

TEST(NsightExportTest, IsLeftAsItIs) {
  const Export file(step().build());
  profiling::run_sql(file.path(), "PRAGMA journal_mode = WAL");
  const std::string before = profiling::contents(file.path());
  std::filesystem::permissions(file.path(), std::filesystem::perms::owner_read);
  EXPECT_EQ(file.read().work.size(), 7U);
  EXPECT_EQ(profiling::contents(file.path()), before);
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(file.folder())) left.push_back(entry.path().filename());
  EXPECT_THAT(left, ElementsAre("report.sqlite"));
}

// What versions and options leave out.

TEST(NsightExportVersionTest, WithoutGraphsTellsThemByTheirNodes) {
  Export file(step().build());
  file.change("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN graphId");
  profiling::expect_same_events(file.read(), step().build());
}

TEST(NsightExportVersionTest, WithoutGraphsAndNodesTellsThemByTheirLaunches) {
  Export file(step().build());
  file.change(
      "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN graphId;"
      "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN graphNodeId");
  const Timeline read = file.read();
  EXPECT_EQ(read.work.back().graph, 1U);
  EXPECT_EQ(read.work.front().graph, 0U);
  EXPECT_THAT(read.notes, ElementsAre("2 pieces of work of graph launches name no graph: counted as graph 1"));
}

TEST(NsightExportVersionTest, WithoutDemangledNamesHasShortOnes) {
  Export file(step().build());
  file.change("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN demangledName");
  const Timeline read = file.read();
  EXPECT_EQ(read.name(read.work.front().name), "short name");
}

TEST(NsightExportVersionTest, WithoutANameSaysSo) {
  Export file(step().build());
  file.change(
      "DELETE FROM StringIds WHERE value LIKE 'void gemm%' OR value = 'train';"
      "UPDATE NVTX_EVENTS SET text = NULL WHERE text = 'train'");
  const Timeline read = file.read();
  EXPECT_EQ(read.name(read.work.front().name), "(a kernel without a name)");
  EXPECT_EQ(read.name(read.ranges.front().name), "(a range without a name)");
}

TEST(NsightExportVersionTest, WithoutTheKindsOfMemoryNamesCopiesByTheirDirection) {
  Export file(step().build());
  file.change(
      "ALTER TABLE CUPTI_ACTIVITY_KIND_MEMCPY DROP COLUMN srcKind;"
      "ALTER TABLE CUPTI_ACTIVITY_KIND_MEMCPY DROP COLUMN dstKind;"
      "ALTER TABLE CUPTI_ACTIVITY_KIND_MEMSET DROP COLUMN memKind");
  const Timeline read = file.read();
  EXPECT_EQ(read.name(read.work[1].name), "Memcpy HtoD (Unknown -> Unknown)");
  EXPECT_EQ(read.name(read.work[3].name), "Memset (Unknown)");
}

TEST(NsightExportVersionTest, Of2021HasTheDevicesNameElsewhere) {
  Export file(named(step().build()));
  file.change("DROP TABLE TARGET_INFO_CUDA_DEVICE");
  EXPECT_EQ(file.read().device_name, "another GPU") << "by the number of the GPU, where none of CUDA's is known";
  file.change(
      "DROP TABLE TARGET_INFO_GPU; CREATE TABLE TARGET_INFO_CUDA_GPU (deviceId INTEGER, name TEXT);"
      "INSERT INTO TARGET_INFO_CUDA_GPU VALUES (0, 'an older GPU')");
  EXPECT_EQ(file.read().device_name, "an older GPU");
  file.change("DROP TABLE TARGET_INFO_CUDA_GPU");
  EXPECT_EQ(file.read().device_name, "");
}

TEST(NsightExportVersionTest, HasNoTablesOfWhatDidNotHappen) {
  Export file(step().build());
  file.change(
      "DROP TABLE CUPTI_ACTIVITY_KIND_MEMCPY; DROP TABLE CUPTI_ACTIVITY_KIND_MEMSET; DROP TABLE NVTX_EVENTS;"
      "DROP TABLE PROCESSES; DROP TABLE ThreadNames");
  const Timeline read = file.read();
  EXPECT_EQ(read.work.size(), 3U);
  EXPECT_THAT(read.ranges, IsEmpty());
  EXPECT_THAT(read.notes, IsEmpty());
}

TEST(NsightExportVersionTest, WithoutCallsSaysWhatIsNotKnown) {
  Export file(step().build());
  file.change("DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME");
  EXPECT_THAT(file.read().notes, ElementsAre(HasSubstr("no calls of CUDA were recorded: what the host did while")));
}

TEST(NsightExportVersionTest, ThatRecordedGraphsAsAWholeSaysHowToSeeTheirNodes) {
  Export file(step().build());
  file.change(
      "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE graphId = 9;"
      "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INT, end INT, deviceId INT, contextId INT, streamId INT,"
      " correlationId INT, globalPid INT, graphId INT NOT NULL, graphExecId INT NOT NULL);"
      "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE SELECT 70000, 77000, 0, 1, 7, correlationId, globalTid, 9, 11"
      " FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds ON nameId = id WHERE value LIKE 'cudaGraphLaunch%'");
  const Timeline read = file.read();
  ASSERT_EQ(read.work.size(), 6U);
  const DeviceWork& graph = read.work.back();
  EXPECT_EQ(graph.time, (TimeSpan{us(70), us(77)}));
  EXPECT_EQ(graph.graph, 9U);
  EXPECT_EQ(read.name(graph.name), "graph 9");
  EXPECT_EQ(graph.process, 0);
  EXPECT_THAT(read.notes, ElementsAre(AllOf(HasSubstr("1 launch of graphs was recorded as one piece of work"),
                                            HasSubstr("--cuda-graph-trace=node"))));
}

// What happens to single rows.

TEST(NsightExportRowsTest, OfMigrationsOfUnifiedMemoryAreLeftOut) {
  Export file(step().build());
  file.change("UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET copyKind = 11 WHERE copyKind = 8");
  const Timeline read = file.read();
  EXPECT_EQ(read.work.size(), 6U);
  EXPECT_THAT(read.notes, ElementsAre("1 migration of unified memory was left out"));
}

TEST(NsightExportRowsTest, WithoutTimesAreLeftOut) {
  Export file(step().build());
  file.change(
      "UPDATE CUPTI_ACTIVITY_KIND_MEMSET SET start = 0, end = 0;"
      "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'soon' WHERE start = 10000");
  const Timeline read = file.read();
  EXPECT_EQ(read.work.size(), 5U);
  EXPECT_THAT(read.notes, ElementsAre("2 calls or pieces of work without times were left out"));
}

TEST(NsightExportRowsTest, OfCallsInsideOthersAreTheirs) {
  Export file(step().build());
  file.change(
      "INSERT INTO StringIds VALUES (7, 'cuLaunchKernel');"
      "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME SELECT start + 100, end - 100, 1, globalTid, 777, 7, 0, NULL"
      " FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE start = 4000;"
      "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET correlationId = 777 WHERE start = 10000");
  profiling::expect_same_events(file.read(), step().build());
}

TEST(NsightExportRowsTest, OfOpenRangesLastToTheEnd) {
  Export file(step().build());
  file.change("UPDATE NVTX_EVENTS SET end = NULL WHERE text = 'train'");
  const Timeline read = file.read();
  EXPECT_EQ(read.name(read.ranges.front().name), "train");
  EXPECT_EQ(read.ranges.front().time, (TimeSpan{us(2), us(78)}));
}

TEST(NsightExportRowsTest, OfRangesThatCrossAreCut) {
  Export file(step().build());
  file.change(
      "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid)"
      " SELECT start + 1, end + 1, 60, 'later', globalTid FROM NVTX_EVENTS WHERE text = 'train'");
  const Timeline read = file.read();
  ASSERT_EQ(read.ranges.size(), 5U);
  EXPECT_EQ(read.name(read.ranges[1].name), "later");
  EXPECT_EQ(read.ranges[1].time, (TimeSpan{us(2) + 1, us(82)}));
  EXPECT_THAT(read.notes, ElementsAre("1 range ended after the one in which it began, and was cut there"));
}

TEST(NsightExportRowsTest, OfEmitNvtxAreTheOperationsThatTheyName) {
  Export file(step().build());
  file.change(
      "UPDATE NVTX_EVENTS SET text = 'aten::addmm, seq = 3, op_id = 17, sizes = [[8, 4]]', textId = NULL"
      " WHERE start = 3500;"
      "UPDATE StringIds SET value = 'nn.Module: Linear_0, op_id = 16' WHERE value = 'nn.Module: Linear_0'");
  profiling::expect_same_events(file.read(), step().build());
}

// What is refused.

struct WrongRow {
  const char* name;
  const char* change;
  const char* what;
  const char* where;
};
class NsightRowTable : public ::testing::TestWithParam<WrongRow> {};
TEST_P(NsightRowTable, IsRefusedWithFileAndRow) {
  Export file(step().build());
  file.change(GetParam().change);
  EXPECT_THAT([&] { (void)file.read(); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("the Nsight Systems export '" + file.path() + "' has a "),
                                              HasSubstr(GetParam().what), HasSubstr(GetParam().where))));
}
INSTANTIATE_TEST_SUITE_P(
    Rows, NsightRowTable,
    ::testing::Values(
        WrongRow{"Backwards", "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start - 1 WHERE start = 10000",
                 "it ends before it begins", "where: row 1 of the table CUPTI_ACTIVITY_KIND_KERNEL"},
        WrongRow{"FromTheLeast", "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = -9223372036854775807 - 1", "95 years",
                 "row 1 of the table CUPTI_ACTIVITY_KIND_KERNEL, from -9223372036854775808 ns to "},
        WrongRow{"ToTheMost", "UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET end = 9223372036854775807", "95 years",
                 "row 1 of the table CUPTI_ACTIVITY_KIND_MEMCPY"},
        WrongRow{"OfACall", "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET end = 9223372036854775807", "95 years",
                 "row 1 of the table CUPTI_ACTIVITY_KIND_RUNTIME"},
        WrongRow{"OfARange", "UPDATE NVTX_EVENTS SET end = start - 5 WHERE text = 'train'", "it ends before it begins",
                 " of the table NVTX_EVENTS"},
        WrongRow{"OfAnOpenRange", "UPDATE NVTX_EVENTS SET start = 9223372036854775807, end = NULL WHERE text = 'train'",
                 "95 years", " of the table NVTX_EVENTS"},
        WrongRow{"AsARealNumber", "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = 1e300", "95 years", "row 1 of"},
        WrongRow{"OfAnotherClock", "UPDATE CUPTI_ACTIVITY_KIND_MEMSET SET end = 1790857026000000000",
                 "more than a year", "row 1 of the table CUPTI_ACTIVITY_KIND_MEMSET"},
        WrongRow{"Device", "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = 4294967296",
                 "number that cannot be right: device 4294967296", "row 1 of the table CUPTI_ACTIVITY_KIND_KERNEL"},
        WrongRow{"Bytes", "UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET bytes = -1", "number that cannot be right: bytes -1",
                 "row 1 of the table CUPTI_ACTIVITY_KIND_MEMCPY"}),
    [](const auto& wrong) { return std::string(wrong.param.name); });

TEST(NsightExportRefusalTest, OfATextThatIsTooLong) {
  Export file(step().build());
  file.change("UPDATE StringIds SET value = CAST(zeroblob(30000000) AS TEXT)");
  EXPECT_THAT([&] { (void)file.read(); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("report.sqlite' cannot be read"), HasSubstr("too big"))));
}

// The last page of a table says that the first one follows: a damaged file may say anything.
TEST(NsightExportRefusalTest, OfRowsThatNeverEnd) {
  Export file(training_timeline({}));
  const std::string whole = profiling::contents(file.path());
  int endless = 0;
  for (std::size_t page = 0; page + 4096 <= whole.size() && endless < 1; page += 4096) {
    if (page == 0 || whole[page] != '\x05') continue;  // An inner page of a table: let its cells name itself.
    std::string bytes = whole;
    const auto number = static_cast<std::uint32_t>(page / 4096 + 1);
    for (int i = 0; i < 4; ++i) {
      bytes[page + 8 + static_cast<std::size_t>(i)] = static_cast<char>(number >> (24 - 8 * i));
    }
    profiling::write_file(file.path(), bytes);
    EXPECT_THAT([&] { (void)file.read(); }, ThrowsMessage<UsageError>(HasSubstr("is cut off or damaged")));
    ++endless;
  }
  EXPECT_EQ(endless, 1);
}

TEST(NsightExportRefusalTest, NamesAFileThatIsNotThere) {
  const TemporaryFolder folder;
  EXPECT_THAT([&] { (void)read_nsight_export(folder / "none.sqlite"); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("there is no file"), HasSubstr("none.sqlite"))));
}

TEST(NsightExportRefusalTest, OfAFileThatIsNoExportOfNsight) {
  const TemporaryFolder folder;
  profiling::run_sql(folder / "mail.sqlite", "CREATE TABLE letters (text TEXT)");
  EXPECT_THAT([&] { (void)read_profile(folder / "mail.sqlite"); },
              ThrowsMessage<UsageError>(
                  AllOf(HasSubstr("is an SQLite file, but no export of Nsight Systems: it has no table StringIds"),
                        HasSubstr("nsys export --type sqlite"))));
}

TEST(NsightExportRefusalTest, OfACutFileWhereverItIsCut) {
  const Export file(training_timeline({}));
  const std::string whole = profiling::contents(file.path());
  ASSERT_GT(whole.size(), 50'000U);
  for (const std::size_t bytes : {std::size_t{20}, std::size_t{600}, std::size_t{4096}, whole.size() / 2,
                                  whole.size() - 4096, whole.size() - 1}) {
    profiling::write_file(file.path(), std::string_view(whole).substr(0, bytes));
    EXPECT_THAT([&] { (void)file.read(); },
                ThrowsMessage<UsageError>(
                    AllOf(HasSubstr("report.sqlite' is cut off or damaged: "), HasSubstr("wait until that has ended"))))
        << bytes << " of " << whole.size();
  }
}

TEST(NsightExportRefusalTest, OfADamagedPage) {
  const Export file(training_timeline({}));
  std::string bytes = profiling::contents(file.path());
  for (std::size_t page = 4096; page < bytes.size(); page += 4096) bytes[page] = '\x77';
  profiling::write_file(file.path(), bytes);
  EXPECT_THAT([&] { (void)file.read(); }, ThrowsMessage<UsageError>(HasSubstr("is cut off or damaged: SQLite says '")));
}

TEST(NsightExportRefusalTest, OfARecordingWithoutWorkOfAGpu) {
  Export file(step().build());
  file.change(
      "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL; DROP TABLE CUPTI_ACTIVITY_KIND_MEMCPY;"
      "DELETE FROM CUPTI_ACTIVITY_KIND_MEMSET");
  EXPECT_THAT([&] { (void)file.read(); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("has no work of a GPU: 7 calls of CUDA and 4 NVTX ranges"),
                                              HasSubstr("Nsight Systems 2026.1.1.204, schema 3.24.14"),
                                              HasSubstr("--trace=cuda,nvtx"))));
}

TEST(NsightExportRefusalTest, OfAVersionWhoseTablesLackWhatIsNeeded) {
  Export file(step().build());
  file.change("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN streamId");
  EXPECT_THAT([&] { (void)file.read(); },
              ThrowsMessage<UsageError>(
                  AllOf(HasSubstr("has no column 'streamId' in its table CUPTI_ACTIVITY_KIND_KERNEL"),
                        HasSubstr("Nsight Systems 2026.1.1.204, schema 3.24.14"), HasSubstr("with a newer nsys"))));
  file.change("DROP TABLE META_DATA_EXPORT");
  EXPECT_THAT([&] { (void)file.read(); }, ThrowsMessage<UsageError>(HasSubstr("an unknown version of Nsight Systems")));
}

}  // namespace
}  // namespace pianola::nsight_export_test
