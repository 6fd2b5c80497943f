#include <pianola/profile/show/page_json.hpp>

#include <pianola/profile/show/html_report.hpp>
#include <pianola/profile/testing/small_profile.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace pianola::profiling::page_json_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr std::size_t kMegabyte = 1'000'000;

std::string page_of(const SmallProfile& profile, const HtmlOptions& options = {}) {
  return to_html(profile.timeline, profile.analysis, profile.decision, options);
}

// What a page hands to its script.
Json data_of(const std::string& page) {
  constexpr std::string_view kBegin = "<script type=\"application/json\" id=\"profile\">";
  const std::size_t begin = page.find(kBegin) + kBegin.size();
  return Json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}
Json data_of(const SmallProfile& profile) { return data_of(page_of(profile)); }

Json cells_of(const Json& row) { return row.at("cells"); }

std::size_t count_of(std::string_view text, std::string_view part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(PageTest, LoadsNothing) {
  std::string page = page_of(SmallProfile());
  constexpr std::string_view kNamespace = "'http://www.w3.org/2000/svg'";  // a name, which nobody loads
  page.erase(page.find(kNamespace), kNamespace.size());
  EXPECT_THAT(page, StartsWith("<!DOCTYPE html>\n<html lang=\"en\">"));
  for (const char* loading : {"http://", "https://", "//cdn", "@import", "url(", " src=", "fetch(", "<iframe"}) {
    EXPECT_THAT(page, Not(HasSubstr(loading)));
  }
  EXPECT_EQ(count_of(page, "href="), count_of(page, "href=\"data:,\""));
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  for (const char* parsing : {"innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "@page", "{{"}) {
    EXPECT_THAT(page, Not(HasSubstr(parsing)));
  }
}

TEST(PageTest, TheVerdictHasAMarkInColourAndWords) {
  SmallProfile profile;
  const std::array marks = {std::array{"good", "Graph it"},           std::array{"caution", "Small gain"},
                            std::array{"neutral", "Leave it"},        std::array{"done", "Graphed already"},
                            std::array{"caution", "Join its graphs"}, std::array{"neutral", "Cannot be told"}};
  for (std::size_t i = 0; i < marks.size(); ++i) {
    profile.decision.verdict = static_cast<GraphVerdict>(i);
    const Json verdict = data_of(profile)["verdict"];
    EXPECT_EQ(verdict["style"], marks[i][0]);
    EXPECT_EQ(verdict["words"], marks[i][1]);
    EXPECT_EQ(verdict["headline"], "Graph it: twice as fast.");
  }
}

TEST(PageTest, ShowsTheKeyNumbers) {
  EXPECT_EQ(data_of(SmallProfile())["tiles"], Json::parse(R"([
      ["Iteration", "1.10 ms", "median of 3, ± 7.0 %"], ["Device utilisation", "45 %", "busy 500 us"],
      ["Device idle", "600 us", "55 % of the time"], ["Kernels", "1", "median 500 us"],
      ["In launch calls", "10.0 us", "of the host, 1 call"], ["Expected speed-up", "2.0x", "550 us, whole iteration"]])"));
}

// 500 us of work in an iteration of 1100 us, which takes 800 us where nothing records it.
TEST(PageTest, ShowsTheTimeOfTheUnrecordedIterationWhereItIsKnown) {
  SmallProfile profile;
  profile.analysis.unrecorded = 800'000;
  profile.analysis.utilisation = 0.625;
  profile.analysis.launches = 12;
  profile.analysis.graph_launches = 3;
  const Json data = data_of(profile);
  EXPECT_EQ(data["tiles"][0], Json::parse(R"(["Iteration", "800 us", "1.10 ms while it was recorded"])"));
  EXPECT_EQ(data["tiles"][2], Json::parse(R"(["Device idle", "300 us", "38 % of the time"])"));
  EXPECT_EQ(data["tiles"][4][2], "of the host, 12 calls (graphs: 3)");
  EXPECT_EQ(data["scopes"]["chart"]["words"], "now 800 us");
}

TEST(PageTest, SplitsTheTimeByCause) {
  SmallProfile profile;
  profile.analysis.idle = {300'000, 100'000, 50'000, 100'000, 50'000};  // kernels 400, copies 100, idle 500 us
  const Json idle = data_of(profile)["idle"];
  EXPECT_EQ(idle["label"], "Device busy 50 %, idle 50 %; the table below splits it");
  EXPECT_EQ(idle["bar"][0], Json::parse(R"({"mark": "k", "share": 0.4, "title": "busy: 40 %, 400 us"})"));
  EXPECT_EQ(idle["bar"][1], Json::parse(R"({"mark": "c", "share": 0.1, "title": "waiting for a copy: 10 %, 100 us"})"));
  EXPECT_EQ(idle["bar"][2], Json::parse(R"({"mark": "l", "share": 0.3, "title": "launch: 30 %, 300 us"})"));
  const Json& table = idle["table"];
  EXPECT_EQ(table["caption"], "Time of the device per iteration");
  const char* rows[] = {"300 us 30 % 60 %", "100 us 10 % 20 %", "50.0 us 5.0 % 10 %", "50.0 us 5.0 % 10 %"};
  const char* marks[] = {"l", "s", "d", "w"};
  for (std::size_t i = 0; i < 4; ++i) {
    const Json cells = cells_of(table["rows"][i]);
    EXPECT_EQ(cells[0]["mark"], marks[i]);
    EXPECT_EQ(cells[2].get<std::string>() + " " + cells[3].get<std::string>() + " " + cells[4].get<std::string>(),
              rows[i]);
  }
  EXPECT_EQ(cells_of(table["foot"][0]), Json::parse(R"(["idle", "", "500 us", "50 %", "100 %"])"));
  EXPECT_EQ(cells_of(table["foot"][1])[2], "500 us") << "busy";
  EXPECT_EQ(cells_of(table["foot"][2])[2], "100 us") << "of that, waiting for a copy";
}

TEST(PageTest, DrawsTheHistogram) {
  SmallProfile profile;
  profile.analysis.durations.histogram = {};
  profile.analysis.durations.histogram[3] = 30;   // 4 to 8 us
  profile.analysis.durations.histogram[20] = 10;  // the last: 524 ms and more
  profile.analysis.durations.kernels = 40;
  const Json durations = data_of(profile)["durations"];
  EXPECT_EQ(durations["bins"], 21);
  EXPECT_EQ(durations["bars"][0],
            Json::parse(R"({"bin": 3, "kernels": 30, "words": "4 us to 8 us", "share": "75 %"})"));
  EXPECT_EQ(cells_of(durations["table"]["rows"][1]), Json::parse(R"(["524 ms and more", "10", "25 %"])"));
  EXPECT_EQ(durations["edges"][10], "1 ms") << "of 1024 us";
  EXPECT_EQ(data_of(SmallProfile())["durations"]["bins"], 12) << "1 ms is in sight";
}

TEST(PageTest, ShowsScopesWithIntervalAndCall) {
  const Json scopes = data_of(SmallProfile())["scopes"];
  const Json& row = scopes["table"]["rows"][2];
  EXPECT_EQ(row["class"], "best");
  EXPECT_EQ(cells_of(row),
            Json::parse(R"(["whole iteration", "550 us", "500 us to 640 us", "2.0x", "3", "nothing seen"])"));
  EXPECT_EQ(cells_of(scopes["table"]["rows"][1]),
            Json::parse(R"(["each layer", "-", "-", "-", "-", "the layers differ"])"));
  EXPECT_EQ(scopes["chart"]["longest"], 1'100'000);
  EXPECT_EQ(scopes["chart"]["rows"], Json::parse(R"([
      {"what": "each layer", "state": "hindered", "value": "unknown"},
      {"what": "whole iteration", "state": "best", "value": "550 us, 2.0x", "times": [500000, 550000, 640000]}])"));
  EXPECT_EQ(scopes["calls"], Json::parse(R"json([{"scope": "whole iteration", "best": true,
      "Python": "step = FullIteration(f)", "C++": "FullIteration step(f, {.warmup = 3});"
}])json"));
}

TEST(PageTest, ShowsTheMemoryOfScopes) {
  SmallProfile profile;
  profile.decision.memory_unknown = "it was not recorded";
  EXPECT_THAT(data_of(profile)["scopes"]["memory_note"].get<std::string>(),
              HasSubstr("As for the pool, it was not recorded."));
  profile.analysis.memory = MemoryUse{.own = 3U << 20U};
  profile.decision.scopes[1].memory = {.pool = 8U << 20U, .inputs = 512, .executables = 20'480};
  const Json scopes = data_of(profile)["scopes"];
  EXPECT_EQ(cells_of(scopes["memory"]["rows"][0]), Json::parse(R"(["each layer", "-", "-", "-", "-"])"));
  EXPECT_EQ(cells_of(scopes["memory"]["rows"][1]),
            Json::parse(R"(["whole iteration", "8.0 MiB", "512 bytes", "20.0 KiB", "-"])"));
  EXPECT_THAT(scopes["memory_note"].get<std::string>(),
              StartsWith("An iteration as it is allocates up to 3.0 MiB of its own"));
  profile.analysis.memory->left = memory::FreeMemory{.of_driver = 4U << 20U, .cached = 1U << 20U};
  profile.decision.scopes[1].memory.fits = profile.decision.scopes[1].memory.would_fit = false;
  const Json short_of_memory = data_of(profile)["scopes"];
  EXPECT_EQ(cells_of(short_of_memory["memory"]["rows"][1])[4], "no");
  EXPECT_THAT(short_of_memory["memory_note"].get<std::string>(),
              HasSubstr("The driver has 4.0 MiB left, and torch's allocator holds 1.0 MiB unused."));
}

TEST(PageTest, FoldsRegionsAfterTheFirstFiftyAndSortsByNumbers) {
  SmallProfile profile;
  profile.analysis.regions.assign(120, {.name = "autograd::engine::evaluate_function: AddmmBackward0",
                                        .kind = HostRange::Kind::backward,
                                        .entries = 8,
                                        .kernels = 16.5,
                                        .busy = 90'000,
                                        .idle = 120'000});
  const Json regions = data_of(profile)["regions"];
  EXPECT_EQ(regions[0]["rows"].size(), 50U);
  EXPECT_EQ(regions[1]["rows"].size(), 70U);
  EXPECT_EQ(cells_of(regions[0]["rows"][0]), Json::parse(R"([{"code": "AddmmBackward0"}, "autograd node",
      {"text": "8", "value": 8}, {"text": "16.5", "value": 16.5}, {"text": "90.0 us", "value": 90000},
      {"text": "120 us", "value": 120000, "bar": 1.0}])"));
}

TEST(PageTest, ListsReasonsObstaclesAndWaits) {
  const Json data = data_of(SmallProfile());
  EXPECT_EQ(data["reasons"][0], "The device is busy 45 % of the time.");
  EXPECT_EQ(data["obstacles"][0], "cudaStreamSynchronize: keep the loss on the device.");
  EXPECT_EQ(cells_of(data["waits"]["table"]["rows"][0]),
            Json::parse(R"([{"code": "cudaStreamSynchronize"}, "aten::item", "2", "30.0 us"])"));
}

TEST(PageTest, SaysAtTheFootWhatWasProfiled) {
  SmallProfile profile;
  profile.timeline.notes = {"3 records were lost."};
  profile.analysis.warmup = 2;
  EXPECT_EQ(data_of(profile)["facts"], Json::parse(R"([
      ["Source", "a test"], ["Device", "NVIDIA H200, device 0"], ["Process", "0"], ["Time covered", "3.30 ms"],
      ["Events", "3 of devices, 3 calls, 3 ranges"],
      ["Iterations", {"text": "3, each an entry of the range ", "code": "step"}],
      ["Left out", "2 at the beginning, as warm-up"], ["Note", "3 records were lost."]])"));
  EXPECT_EQ(data_of(profile)["title"], "a test");
  EXPECT_EQ(data_of(page_of(profile, {.title = "train.py"}))["title"], "train.py");
}

TEST(PageTest, WorksWithoutIterationsScopesOrAnythingAtAll) {
  SmallProfile profile;
  profile.analysis.by = IterationsBy::nothing;
  profile.analysis.problem = "No sequence of kernels repeats.";
  profile.analysis.iterations.clear();
  profile.decision = {.verdict = GraphVerdict::graphed, .headline = "Graphed already."};
  Json data = data_of(profile);
  EXPECT_EQ(data["tiles"][0][0], "Time profiled");
  EXPECT_EQ(data["tiles"][5], Json::parse(R"(["Expected speed-up", "-", "graphs are in use"])"));
  EXPECT_TRUE(data["scopes"].is_null());
  EXPECT_EQ(data["timeline"]["heading"], "the profile");
  EXPECT_THAT(data["facts"].dump(), HasSubstr("whole profile. No sequence of kernels repeats."));
  EXPECT_THAT(data.dump(), Not(HasSubstr(" per iteration\"")));
  data = data_of(to_html(Timeline{}, Analysis{}, Decision{}));
  EXPECT_EQ(data["title"], "Profile");
  for (const char* part : {"timeline", "idle", "durations", "scopes", "regions", "waits"})
    EXPECT_TRUE(data[part].is_null());
}

TEST(PageTest, HostileNamesStayText) {
  const std::string hostile = "</title></script><script>alert(\"1\" & '2')</script><!--\xFF";
  SmallProfile profile;
  profile.add_work({2'900'000, 2'950'000}, hostile);
  profile.add_call({2'900'000, 2'950'000}, hostile, HostCall::Kind::synchronize);
  profile.add_range({2'900'000, 2'990'000}, hostile);
  profile.analysis.gaps.push_back({.time = {2'850'000, 2'900'000}, .next = 3, .culprit = 3});
  profile.analysis.regions.front().name = profile.analysis.waits.front().call = hostile;
  profile.analysis.waits.front().inside = profile.analysis.range = hostile;
  profile.timeline.source = profile.timeline.device_name = hostile;
  profile.timeline.notes = profile.decision.reasons = profile.decision.obstacles = {hostile};
  profile.decision.headline = hostile;
  for (ScopePrediction& scope : profile.decision.scopes) scope.obstacle = scope.cpp = scope.python = hostile;

  const std::string page = page_of(profile, {.title = hostile});
  EXPECT_EQ(count_of(page, "</script>"), 2U) << "the page's own";
  EXPECT_EQ(count_of(page, "<!--"), 0U);
  EXPECT_THAT(page, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(page, Not(HasSubstr("\xFF")));
  EXPECT_GE(count_of(page, "\\u003c/title>\\u003c/script>"), 16U) << "each of the places";
  EXPECT_EQ(data_of(page)["verdict"]["headline"], hostile.substr(0, hostile.size() - 1) + "\xEF\xBF\xBD");
}

TEST(PageTest, StaysBelowAMegabyteWhateverItHolds) {
  SmallProfile profile;
  profile.analysis.iterations.clear();
  for (int i = 0; i < 60'000; ++i) {  // of 3 us, 5 us apart
    profile.add_work({5000 * i, 5000 * i + 3000}, std::string(i % 3 == 0 ? 100'000 : 10, '<'), i % 4);
  }
  profile.timeline.source = profile.timeline.device_name = std::string(2'000'000, '<');
  profile.timeline.notes.assign(1000, profile.timeline.source);
  profile.analysis.regions.assign(1000, {.name = std::string(5000, '<')});
  profile.analysis.waits.assign(1000, {std::string(5000, '<'), std::string(5000, '<'), 1, 1});
  const std::string page = page_of(profile);
  EXPECT_LT(page.size(), kMegabyte);
  std::size_t marks = 0;
  const Json data = data_of(page);
  for (const Json& row : data["timeline"]["drawing"]["rows"]) marks += row["marks"].size();
  EXPECT_GT(marks, 1000U) << "and there is still something to see";
}

TEST(PageTextTest, AKernelIsReadWithoutItsParameters) {
  EXPECT_EQ(readable("void at::native::fill<4, Op<float> >(int, Op<float>, void (*)(int))"), "fill<4, Op<float> >");
  EXPECT_EQ(readable("ampere_sgemm_128x64_tn"), "ampere_sgemm_128x64_tn");
  EXPECT_EQ(readable("(anonymous namespace)::scan(int*)"), "scan");
  EXPECT_EQ(readable("at::native::(anonymous namespace)::apply<at::native::Adam>(int)"), "apply<Adam>");
  EXPECT_EQ(readable("gemm(float) [clone .kd]"), "gemm");
  EXPECT_EQ(readable("(odd)"), "(odd)");
  EXPECT_EQ(readable("cut)"), "cut)");
  EXPECT_EQ(readable(""), "");
}

TEST(PageTextTest, IsEmbeddedAsAscii) {
  EXPECT_EQ(embedded(Json("f<4>(a && \"b\")\n")), R"("f\u003c4>(a && \"b\")\n")");
  EXPECT_EQ(embedded(Json("Größe")), R"("Gr\u00f6\u00dfe")");
  EXPECT_EQ(embedded(Json("a\xFFz \xC3")), R"("a\ufffdz \ufffd")");
  EXPECT_EQ(cut("<<<<<\n<", 4), "<<<…");
}

}  // namespace
}  // namespace pianola::profiling::page_json_test
