#include <pianola/profile/show/html_report.hpp>

#include <pianola/profile/show/html_palette.hpp>
#include <pianola/profile/testing/html_check.hpp>
#include <pianola/profile/testing/small_profile.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace pianola::html_report_test {
namespace {

using profiling::html_problem;
using profiling::SmallProfile;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr std::size_t kMegabyte = 1'000'000;

std::string page_of(const SmallProfile& profile, const HtmlOptions& options = {}) {
  return to_html(profile.timeline, profile.analysis, profile.decision, options);
}

std::size_t count_of(std::string_view text, std::string_view part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// From the begin of the table with this caption to its end.
std::string table_of(const std::string& page, const std::string& caption) {
  const std::size_t at = page.find("<caption>" + caption);
  EXPECT_NE(at, std::string::npos) << caption;
  return at == std::string::npos ? "" : page.substr(at, page.find("</table>", at) - at);
}

TEST(HtmlReportTest, IsAWellFormedPage) {
  const std::string page = page_of(SmallProfile());
  EXPECT_EQ(html_problem(page), "");
  EXPECT_THAT(page, StartsWith("<!DOCTYPE html>\n<html lang=\"en\">"));
  EXPECT_THAT(page, HasSubstr("<meta charset=\"utf-8\">"));
  EXPECT_EQ(count_of(page, "<h1>"), 1U);
  EXPECT_EQ(count_of(page, "<main>"), 1U);
  EXPECT_EQ(count_of(page, "<table"), count_of(page, "<caption>"));
}

TEST(HtmlReportTest, LoadsNothing) {
  const std::string page = page_of(SmallProfile());
  for (const char* loading : {"http://", "https://", "//cdn", "@import", "url(", " src=", "fetch(", "<iframe"}) {
    EXPECT_THAT(page, Not(HasSubstr(loading)));
  }
  EXPECT_EQ(count_of(page, "href="), count_of(page, "href=\"data:,\""));
  EXPECT_THAT(page, HasSubstr("default-src &#39;none&#39;"));
}

TEST(HtmlReportTest, SaysTheVerdictOnTop) {
  const std::string page = page_of(SmallProfile());
  EXPECT_THAT(page, HasSubstr("<p class=\"mark good\">Graph it</p>\n<h1>Graph it: twice as fast.</h1>"));
  EXPECT_LT(page.find("<h1>"), page.find("<main>"));
}

struct Mark {
  const char* name;
  GraphVerdict verdict;
  const char* mark;
};
class HtmlVerdictTest : public ::testing::TestWithParam<Mark> {};
TEST_P(HtmlVerdictTest, HasAMarkInColourAndWords) {
  SmallProfile profile;
  profile.decision.verdict = GetParam().verdict;
  EXPECT_THAT(page_of(profile), HasSubstr(GetParam().mark));
}
INSTANTIATE_TEST_SUITE_P(Verdicts, HtmlVerdictTest,
                         ::testing::Values(Mark{"Graph", GraphVerdict::graph, "\"mark good\">Graph it<"},
                                           Mark{"SmallGain", GraphVerdict::small_gain, "\"mark caution\">Small gain<"},
                                           Mark{"Leave", GraphVerdict::leave, "\"mark neutral\">Leave it<"},
                                           Mark{"Graphed", GraphVerdict::graphed, "\"mark done\">Graphed already<"},
                                           Mark{"Unknown", GraphVerdict::unknown, "\"mark neutral\">Cannot be told<"}),
                         [](const auto& mark) { return std::string(mark.param.name); });

TEST(HtmlReportTest, ShowsTheKeyNumbers) {
  const std::string page = page_of(SmallProfile());
  EXPECT_THAT(page, HasSubstr("<dt>Iteration</dt><dd>1.10 ms</dd><dd>median of 3, ± 7.0 %</dd>"));
  EXPECT_THAT(page, HasSubstr("<dt>Device utilisation</dt><dd>45 %</dd><dd>busy 500 us</dd>"));
  EXPECT_THAT(page, HasSubstr("<dt>Device idle</dt><dd>600 us</dd><dd>55 % of the time</dd>")) << "600 of 1100 us";
  EXPECT_THAT(page, HasSubstr("<dt>Kernels</dt><dd>1</dd><dd>median 500 us</dd>"));
  EXPECT_THAT(page, HasSubstr("<dt>In launch calls</dt><dd>10.0 us</dd><dd>of the host, 1 call</dd>"));
  EXPECT_THAT(page, HasSubstr("<dt>Expected speed-up</dt><dd>2.0x</dd><dd>550 us, whole iteration</dd>"));
}

// 500 us of work in an iteration of 1100 us, which takes 800 us where nothing records it.
TEST(HtmlReportTest, ShowsTheTimeOfTheUnrecordedIterationWhereItIsKnown) {
  SmallProfile profile;
  profile.analysis.unrecorded = 800'000;
  profile.analysis.utilisation = 0.625;
  const std::string page = page_of(profile);
  EXPECT_THAT(page, HasSubstr("<dt>Iteration</dt><dd>800 us</dd><dd>1.10 ms while it was recorded</dd>"));
  EXPECT_THAT(page, HasSubstr("<dt>Device idle</dt><dd>300 us</dd><dd>38 % of the time</dd>"));
  EXPECT_THAT(page, HasSubstr(">now 800 us</span>"));
}

TEST(HtmlReportTest, CountsTheGraphsAmongTheLaunches) {
  SmallProfile profile;
  profile.analysis.launches = 12;
  profile.analysis.graph_launches = 3;
  EXPECT_THAT(page_of(profile), HasSubstr("<dd>of the host, 12 calls (graphs: 3)</dd>"));
}

TEST(HtmlReportTest, ListsReasonsAndObstacles) {
  const std::string page = page_of(SmallProfile());
  EXPECT_THAT(page, HasSubstr("<li>The device is busy 45\u00A0% of the time.</li>"));
  EXPECT_THAT(page, HasSubstr("<li>cudaStreamSynchronize: keep the loss on the device.</li>"));
}

TEST(HtmlReportTest, DrawsTheTypicalIterationToScale) {
  const std::string page = page_of(SmallProfile());
  EXPECT_THAT(page, HasSubstr("Iteration 3 of 3, the one nearest to the median duration (1.10 ms)"));
  // The kernel lasts from 100 to 600 of 1100 us, on a width of 100000.
  EXPECT_THAT(page,
              HasSubstr("<rect class=\"k\" x=\"9090.91\" width=\"45455\" height=\"22\"><title>gemm&lt;float, 4&gt;\n"
                        "500 us from 100 us</title></rect>"));
  EXPECT_THAT(page, HasSubstr("<rect class=\"l\" x=\"0\" width=\"9090.9\" height=\"14\"><title>idle: launch\n100 us"));
  EXPECT_THAT(page, HasSubstr("<title>cudaLaunchKernel\n10.0 us from 50.0 us</title>"));
  EXPECT_THAT(page, HasSubstr("<span class=\"name\" style=\"left:0%;width:100%;top:24px\">step</span>"));
  EXPECT_THAT(page, HasSubstr(">stream 7</span>"));
}

TEST(HtmlReportTest, NamesTheCallBehindAGap) {
  SmallProfile profile;
  profile.add_call({2'200'000, 2'290'000}, "cudaStreamSynchronize", HostCall::Kind::synchronize);
  profile.analysis.gaps[2].cause = GapCause::synchronization;
  profile.analysis.gaps[2].culprit = profile.timeline.calls.size() - 1;
  const std::string page = page_of(profile);
  EXPECT_THAT(page, HasSubstr("<title>idle: synchronization, cudaStreamSynchronize\n100 us from 0 us</title>"));
  EXPECT_THAT(table_of(page, "Longest gaps"),
              AllOf(HasSubstr("<code>cudaStreamSynchronize</code>"), HasSubstr(">100 us</td>"),
                    HasSubstr("<code>gemm&lt;float, 4&gt;</code>")));
}

TEST(HtmlReportTest, SplitsTheTimeByCause) {
  SmallProfile profile;
  profile.analysis.idle = {300'000, 150'000, 50'000, 0, 0};  // of a mean of 500 + 500 us
  const std::string page = page_of(profile);
  EXPECT_THAT(page, HasSubstr("<span class=\"k\" style=\"width:50%\" title=\"busy: 50 %, 500 us\"></span>"));
  EXPECT_THAT(page, HasSubstr("<span class=\"s\" style=\"width:15%\" title=\"synchronization: 15 %, 150 us\"></span>"));
  const std::string table = table_of(page, "Time of the device per iteration");
  EXPECT_THAT(table, HasSubstr(">300 us</td><td class=\"n\">30 %</td><td class=\"n\">60 %</td>"));
  EXPECT_THAT(table, HasSubstr(">50.0 us</td><td class=\"n\">5.0 %</td><td class=\"n\">10 %</td>"));
  EXPECT_THAT(table, HasSubstr(">0 us</td><td class=\"n\">0 %</td><td class=\"n\">0 %</td>"));
}

TEST(HtmlReportTest, CountsAWaitForACopyAsBusy) {
  SmallProfile profile;
  profile.analysis.idle = {500'000, 0, 0, 100'000, 0};  // kernels 400, copies 100, idle 500 us
  const std::string page = page_of(profile);
  EXPECT_THAT(page, HasSubstr("<dd>500 us</dd><dd>50 % of the time</dd>"));
  EXPECT_THAT(page, HasSubstr("<span class=\"k\" style=\"width:40%\" title=\"busy: 40 %, 400 us\"></span>"));
  EXPECT_THAT(page,
              HasSubstr("<span class=\"c\" style=\"width:10%\" title=\"waiting for a copy: 10 %, 100 us\"></span>"));
  const std::string table = table_of(page, "Time of the device per iteration");
  EXPECT_THAT(table, HasSubstr(">500 us</td><td class=\"n\">50 %</td><td class=\"n\">100 %</td>"));
  EXPECT_THAT(table, HasSubstr(">100 us</td><td class=\"n\">10 %</td><td class=\"n\"></td>"));
  EXPECT_GT(table.find("in which kernels waited for a copy"), table.find("at least one stream had work"));
}

TEST(HtmlReportTest, DrawsTheHistogramWithItsMarks) {
  SmallProfile profile;
  profile.analysis.durations.histogram = {};
  profile.analysis.durations.histogram[3] = 30;   // 4 to 8 us
  profile.analysis.durations.histogram[20] = 10;  // the last: 524 ms and more
  profile.analysis.durations.kernels = 40;
  const std::string page = page_of(profile);
  EXPECT_THAT(page, HasSubstr("<title>4 us to 8 us: 30</title>"));
  EXPECT_THAT(table_of(page, "Kernels by duration"),
              AllOf(HasSubstr("4 us to 8 us</th><td class=\"n\">30</td><td class=\"n\">75 %</td>"),
                    HasSubstr("524 ms and more</th><td class=\"n\">10</td>")));
  // Slot 1 of 21 begins at 1 us: log2(50) = 5.644 slots further, log2(1000) = 9.966.
  EXPECT_THAT(page, HasSubstr("<span class=\"limit\" style=\"left:31.64%\">50 us</span>"));
  EXPECT_THAT(page, HasSubstr("<span class=\"limit\" style=\"left:52.22%\">1 ms</span>"));
}

TEST(HtmlReportTest, ShowsScopesWithIntervalAndCall) {
  const std::string page = page_of(SmallProfile());
  const std::string table = table_of(page, "Predicted iteration time");
  EXPECT_THAT(table, HasSubstr("<tr class=\"best\"><th scope=\"row\">whole iteration</th><td class=\"n\">550 us</td>"
                               "<td class=\"n\">500 us to 640 us</td><td class=\"n\">2.0x</td><td class=\"n\">3</td>"));
  EXPECT_THAT(table, HasSubstr("<td>the layers differ</td>"));
  EXPECT_THAT(page, HasSubstr(">unknown<")) << "a scope without a prediction";
  EXPECT_THAT(page, HasSubstr("<code>FullIteration step(f, {.warmup = 3});</code>"));
  EXPECT_THAT(page, HasSubstr("<code>step = FullIteration(f)</code>"));
  // 1.1 ms now, on a scale that ends 4 % further: 96.15 %; 550 us: 48.08 %.
  EXPECT_THAT(page, HasSubstr("<span class=\"now\" style=\"left:96.15%\"></span>"));
  EXPECT_THAT(page, HasSubstr("<rect class=\"expected\" y=\"9\" width=\"48.08\" height=\"18\">"));
}

TEST(HtmlReportTest, ShowsTheMemoryOfScopes) {
  SmallProfile profile;
  profile.analysis.memory = MemoryUse{.own = 3U << 20U};
  profile.decision.scopes[1].memory = {.pool = 8U << 20U, .inputs = 512, .executables = 20'480};
  const std::string page = page_of(profile);
  EXPECT_EQ(html_problem(page), "");
  const std::string table = table_of(page, "Device memory by what the graph takes in");
  EXPECT_THAT(table, HasSubstr("<tr class=\"best\"><th scope=\"row\">whole iteration</th><td class=\"n\">8.0 MiB</td>"
                               "<td class=\"n\">512 bytes</td><td class=\"n\">20.0 KiB</td></tr>"));
  EXPECT_THAT(table, HasSubstr("<th scope=\"row\">each layer</th><td class=\"n\">-</td>"));
  EXPECT_THAT(page, HasSubstr("An iteration as it is allocates up to 3.0\u00A0MiB of its own at a time."));
}

TEST(HtmlReportTest, SaysHowToRecordMemoryThatIsUnknown) {
  SmallProfile profile;
  profile.decision.memory_unknown = "it was <not> recorded";
  const std::string page = page_of(profile);
  EXPECT_EQ(html_problem(page), "");
  EXPECT_THAT(page, HasSubstr("As for the pool, it was &lt;not&gt; recorded."));
  EXPECT_THAT(table_of(page, "Device memory by"), HasSubstr("whole iteration</th><td class=\"n\">-</td>"));
}

TEST(HtmlReportTest, FoldsRegionsAfterTheFirstFifty) {
  SmallProfile profile;
  profile.analysis.regions.assign(120, profile.analysis.regions.front());
  const std::string page = page_of(profile);
  EXPECT_EQ(count_of(table_of(page, "Regions per iteration"), "<tr><th scope=\"row\">"), 50U);
  EXPECT_EQ(count_of(table_of(page, "Further regions"), "<tr><th scope=\"row\">"), 70U);
  EXPECT_THAT(page, HasSubstr("<summary>Further regions (70)</summary>"));
}

TEST(HtmlReportTest, ARegionHasNumbersToSortBy) {
  SmallProfile profile;
  profile.analysis.regions = {{.name = "autograd::engine::evaluate_function: AddmmBackward0",
                               .kind = HostRange::Kind::backward,
                               .entries = 8,
                               .kernels = 16.5,
                               .busy = 90'000,
                               .idle = 120'000}};
  EXPECT_THAT(table_of(page_of(profile), "Regions per iteration"),
              HasSubstr("<code>AddmmBackward0</code></th><td>autograd node</td><td class=\"n\" data-v=\"8\">8</td>"
                        "<td class=\"n\" data-v=\"16.5\">16.5</td><td class=\"n\" data-v=\"90000\">90.0 us</td>"
                        "<td class=\"n share\" data-v=\"120000\">120 us"));
}

TEST(HtmlReportTest, ListsWaits) {
  EXPECT_THAT(table_of(page_of(SmallProfile()), "Calls that waited"),
              HasSubstr("<code>cudaStreamSynchronize</code></th><td>aten::item</td><td class=\"n\">2</td>"
                        "<td class=\"n\">30.0 us</td>"));
}

TEST(HtmlReportTest, SaysAtTheFootWhatWasProfiled) {
  SmallProfile profile;
  profile.timeline.notes = {"3 records were lost."};
  profile.analysis.warmup = 2;
  const std::string page = page_of(profile);
  EXPECT_THAT(page, HasSubstr("<dt>Source</dt><dd>a test</dd>"));
  EXPECT_THAT(page, HasSubstr("<dt>Device</dt><dd>NVIDIA H200, device 0</dd>"));
  EXPECT_THAT(page, HasSubstr("3, each an entry of the range <code>step</code>"));
  EXPECT_THAT(page, HasSubstr("<dt>Left out</dt><dd>2 at the beginning, as warm-up</dd>"));
  EXPECT_THAT(page, HasSubstr("<dt>Note</dt><dd>3 records were lost.</dd>"));
  EXPECT_THAT(page, ::testing::ContainsRegex("<p>Pianola [0-9]"));
}

TEST(HtmlReportTest, IsCalledAfterTheSourceUnlessItHasATitle) {
  const SmallProfile profile;
  EXPECT_THAT(page_of(profile), HasSubstr("<title>a test - Pianola profile</title>"));
  EXPECT_THAT(page_of(profile, {.title = "train.py"}), HasSubstr("<title>train.py - Pianola profile</title>"));
}

TEST(HtmlReportTest, EscapesHostileNamesWhereverTheyStand) {
  const std::string hostile = "</title></script><script>alert(\"1\" & '2')</script>\xFF";
  SmallProfile profile;
  profile.add_work({2'900'000, 2'950'000}, hostile);
  profile.add_call({2'900'000, 2'950'000}, hostile, HostCall::Kind::synchronize);
  profile.add_range({2'900'000, 2'990'000}, hostile);
  profile.analysis.gaps.push_back({.time = {2'850'000, 2'900'000}, .next = 3, .culprit = 3});
  profile.analysis.regions.front().name = profile.analysis.waits.front().call = hostile;
  profile.analysis.waits.front().inside = profile.analysis.range = hostile;
  profile.timeline.source = profile.timeline.device_name = hostile;
  profile.timeline.notes = {hostile};
  profile.decision.headline = hostile;
  profile.decision.reasons = profile.decision.obstacles = {hostile};
  for (ScopePrediction& scope : profile.decision.scopes) scope.obstacle = scope.cpp = scope.python = hostile;

  const std::string page = page_of(profile, {.title = hostile});
  EXPECT_EQ(html_problem(page), "");
  EXPECT_EQ(count_of(page, "<script>"), 1U) << "the page's own";
  EXPECT_THAT(page, Not(HasSubstr("alert(\"")));
  EXPECT_THAT(page, Not(HasSubstr("\xFF")));
  EXPECT_GE(count_of(page, "&lt;/title&gt;&lt;/script&gt;"), 16U) << "each of the places";
}

// Kernels of 3 us, 5 us apart, all in the one iteration.
SmallProfile long_profile(std::size_t kernels, std::string_view name) {
  SmallProfile profile;
  profile.timeline.work.clear();
  profile.timeline.calls.clear();
  profile.analysis.gaps.clear();
  for (std::size_t i = 0; i < kernels; ++i) {
    const auto begin = static_cast<Nanoseconds>(5000 * i);
    profile.analysis.gaps.push_back({.time = {begin, begin + 2000}, .next = i, .culprit = {}});
    profile.add_call({begin, begin + 1500}, "cudaLaunchKernel", HostCall::Kind::launch);
    profile.add_work({begin + 2000, begin + 5000}, name, static_cast<std::int64_t>(i % 4));
  }
  profile.analysis.duration = profile.analysis.unrecorded = static_cast<Nanoseconds>(5000 * kernels);
  profile.analysis.iterations.resize(1);
  profile.analysis.iterations.front().time = {0, profile.analysis.duration};
  return profile;
}

TEST(HtmlReportTest, StaysBelowAMegabyteWithHundredsOfThousandsOfKernels) {
  const std::string page = page_of(long_profile(200'000, "void at::native::vectorized_elementwise_kernel<4>(int)"));
  EXPECT_LT(page.size(), kMegabyte);
  EXPECT_EQ(html_problem(page), "");
  EXPECT_THAT(page, HasSubstr(" together, ")) << "merged marks say so";
  EXPECT_GT(count_of(page, "<rect "), 1000U) << "and there is still something to see";
}

TEST(HtmlReportTest, StaysBelowAMegabyteWhateverNamesHold) {
  SmallProfile profile = long_profile(50'000, std::string(100'000, '"'));
  profile.timeline.source = profile.timeline.device_name = std::string(2'000'000, '&');
  profile.timeline.notes.assign(1000, profile.timeline.source);
  profile.analysis.regions.assign(1000, {.name = std::string(5000, '\'')});
  profile.analysis.waits.assign(1000, {std::string(5000, '<'), std::string(5000, '>'), 1, 1});
  const std::string page = page_of(profile);
  EXPECT_LT(page.size(), kMegabyte);
  EXPECT_EQ(html_problem(page), "");
}

TEST(HtmlReportTest, WorksWithoutIterations) {
  SmallProfile profile;
  profile.analysis.by = IterationsBy::nothing;
  profile.analysis.problem = "No sequence of kernels repeats.";
  profile.analysis.iterations.clear();
  const std::string page = page_of(profile);
  EXPECT_EQ(html_problem(page), "");
  EXPECT_THAT(page, AllOf(HasSubstr("<dt>Time profiled</dt>"), HasSubstr("Timeline of the profile"),
                          HasSubstr("All of 3.30 ms."), HasSubstr("No sequence of kernels repeats.")));
  EXPECT_THAT(page, Not(HasSubstr(" per iteration<")));
}

TEST(HtmlReportTest, WorksWithoutScopes) {
  SmallProfile profile;
  profile.decision = {.verdict = GraphVerdict::graphed, .headline = "Graphed already."};
  const std::string page = page_of(profile);
  EXPECT_EQ(html_problem(page), "");
  EXPECT_THAT(page, HasSubstr("<dt>Expected speed-up</dt><dd>-</dd><dd>graphs are in use</dd>"));
  EXPECT_THAT(page, Not(HasSubstr("What to graph")));
}

TEST(HtmlReportTest, WorksWithNothingAtAll) {
  const std::string page = to_html(Timeline{}, Analysis{}, Decision{});
  EXPECT_EQ(html_problem(page), "");
  EXPECT_THAT(page, HasSubstr("<title>Profile - Pianola profile</title>"));
  EXPECT_THAT(page, Not(HasSubstr("nan")));
}

TEST(HtmlReportTest, SpeaksOfOperationsAndThreadsInAProfileOfTheCpu) {
  SmallProfile profile;
  profile.analysis.device = -1;
  for (DeviceWork& work : profile.timeline.work) {
    work.device = -1;
    work.kind = DeviceWork::Kind::operation;
  }
  const std::string page = page_of(profile);
  EXPECT_THAT(page, AllOf(HasSubstr(">thread 7</span>"), HasSubstr("</i>operation</span>"),
                          HasSubstr("<dt>Device</dt><dd>CPU</dd>")));
}

TEST(HtmlReportTest, FollowsTheSchemeAndPrintsInLight) {
  const std::string page = page_of(SmallProfile());
  const std::string light = profiling::colour_declarations(false);
  EXPECT_THAT(page, HasSubstr(":root{" + light + "}"));
  EXPECT_THAT(page,
              HasSubstr("@media (prefers-color-scheme:dark){:root{" + profiling::colour_declarations(true) + "}}"));
  EXPECT_THAT(page, HasSubstr("@media print{:root{" + light + "}}"));
}

TEST(HtmlReportTest, DeclaresEveryColourItUses) {
  const std::string page = page_of(SmallProfile());
  for (std::size_t at = page.find("var(--"); at != std::string::npos; at = page.find("var(--", at + 1)) {
    const std::string name = page.substr(at + 6, page.find(')', at) - at - 6);
    if (name == "c") continue;  // what a class sets for its marks
    EXPECT_THAT(page, HasSubstr("--" + name + ":#")) << name;
  }
}

TEST(HtmlCheckTest, FindsWhatIsNotWellFormed) {
  EXPECT_EQ(html_problem("<p class=\"a>b\">x &amp; y<br></p>"), "");
  EXPECT_THAT(html_problem("<p>x"), HasSubstr("not closed: p"));
  EXPECT_THAT(html_problem("<p><b></p></b>"), HasSubstr("closes what is not open"));
  EXPECT_THAT(html_problem("<p>a & b</p>"), HasSubstr("an & that is not escaped"));
  EXPECT_THAT(html_problem("<p>a > b</p>"), HasSubstr("a > that is not escaped"));
  EXPECT_THAT(html_problem("<p>a <4> b</p>"), Not(IsEmpty()));
  EXPECT_THAT(html_problem("<p class=a></p>"), HasSubstr("without quotation marks"));
  EXPECT_THAT(html_problem("<p id=\"a\"></p><p id=\"a\"></p>"), HasSubstr("used twice"));
  EXPECT_THAT(html_problem("<p"), HasSubstr("does not end"));
}

}  // namespace
}  // namespace pianola::html_report_test
