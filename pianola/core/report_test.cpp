#include <pianola/core/report.hpp>

#include <pianola/core/error.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <string>

namespace pianola::report_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

Report graph_report() {
  Report report("Graph");
  report.fact("backend", "backend", "cuda").fact("pool_bytes", "pool", 2097152, "bytes");
  report.fact("capture_us", "capture", 1234, "us").fact("draws_random_numbers", "draws random numbers", false);
  report.list("warnings", "Warnings", {"scaled_dot_product_attention is not deterministic"});
  report.table(ReportTable("types", "Nodes by type", {{"type"}, {"nodes"}}).row({"kernel", 41}).row({"memset", 2}));
  return report;
}

TEST(ReportText, AlignsFactsListsAndTables) {
  EXPECT_EQ(graph_report().to_text(),
            "Graph\n"
            "  backend               cuda\n"
            "  pool                  2.0 MiB\n"
            "  capture               1234 us\n"
            "  draws random numbers  no\n"
            "\n"
            "  Warnings\n"
            "  - scaled_dot_product_attention is not deterministic\n"
            "\n"
            "  Nodes by type\n"
            "  type    nodes\n"
            "  ------  -----\n"
            "  kernel     41\n"
            "  memset      2\n");
}

TEST(ReportText, AlignsDecimalPointsAndNamesUnitsInHeadings) {
  Report report;
  report.table(
      ReportTable("modes", "",
                  {{"mode"}, {"steps_per_s", "steps/s", "", 1}, {"host_us", "host", "us"}, {"speedup", "", "x"}})
          .row({"eager", 171.25, 5841.0, 1.0})
          .row({"replay", 1886.5, 4.125, {}}));
  EXPECT_EQ(report.to_text(),
            "mode    steps/s  host (us)  speedup (x)\n"
            "------  -------  ---------  -----------\n"
            "eager     171.2    5841.00            1\n"
            "replay   1886.5       4.12            -\n");
}

TEST(ReportText, IndentsSectionsUnderTheirTitles) {
  Report report("pianola");
  report.fact("version", "version", "0.1");
  report.section("device", std::move(Report("Device 0").fact("name", "name", "H200")));
  EXPECT_EQ(report.to_text(),
            "pianola\n"
            "  version  0.1\n"
            "\n"
            "  Device 0\n"
            "    name  H200\n");
}

TEST(ReportText, ShortensTextButNeverNumbersWhereItIsTooWide) {
  Report report;
  report.table(ReportTable("kernels", "", {{"kernel"}, {"count"}}).row({std::string(60, 'k'), 1234567890}));
  EXPECT_EQ(report.to_text(24),
            "kernel             count\n"
            "------------  ----------\n"
            "kkkkkkkkkkk…  1234567890\n");
}

TEST(ReportText, KeepsEveryValueOnItsLine) {
  EXPECT_EQ(Report().fact("a", "a\tb", "two\nlines").to_text(), "a b  two lines\n");
}

TEST(ReportText, LeavesOutTablesWithoutRows) {
  Report report("Findings");
  report.table(ReportTable("none", "Nothing here", {{"a"}})).fact("count", "count", 0U);
  EXPECT_EQ(report.to_text(), "Findings\n  count  0\n");
}

TEST(ReportText, OfAnEmptyReportIsItsTitle) {
  EXPECT_EQ(Report("Nothing").to_text(), "Nothing\n");
  EXPECT_EQ(Report().list("warnings", "Warnings", {}).to_text(), "");
}

struct Shown {
  const char* name;
  ReportValue value;
  const char* unit;
  const char* text;
};
class ReportValueText : public ::testing::TestWithParam<Shown> {};
TEST_P(ReportValueText, IsReadable) {
  EXPECT_EQ(Report().fact("k", "v", GetParam().value, GetParam().unit).to_text(),
            std::string("v  ") + GetParam().text + "\n");
}
INSTANTIATE_TEST_SUITE_P(
    Values, ReportValueText,
    ::testing::Values(Shown{"FewBytes", 1023, "bytes", "1023 bytes"}, Shown{"NoBytes", 0, "bytes", "0 bytes"},
                      Shown{"Gibibytes", std::uint64_t{3} << 30U, "bytes", "3.0 GiB"},
                      Shown{"Freed", -2048, "bytes", "-2.0 KiB"}, Shown{"Absent", {}, "us", "-"},
                      Shown{"Whole", 526.0, "us", "526 us"}, Shown{"ThreeDigits", 0.62537, "", "0.625"},
                      Shown{"Large", 1886.51, "", "1887"}, Shown{"Tiny", 0.00000123, "", "1.23e-06"},
                      Shown{"Huge", 1e20 + 0.0, "", "1e+20"}, Shown{"NotANumber", std::nan(""), "us", "nan us"},
                      Shown{"Size", std::numeric_limits<std::size_t>::max(), "", "18446744073709551615"},
                      Shown{"Yes", true, "us", "yes"}),
    [](const auto& shown) { return std::string(shown.param.name); });

TEST(ReportJson, HasKeysInOrderAndNumbersAsNumbers) {
  EXPECT_EQ(graph_report().to_json(-1),
            R"({"backend":"cuda","pool_bytes":2097152,"capture_us":1234,"draws_random_numbers":false,)"
            R"("warnings":["scaled_dot_product_attention is not deterministic"],)"
            R"("types":[{"type":"kernel","nodes":41},{"type":"memset","nodes":2}]})");
}

TEST(ReportJson, NestsSectionsAndKeepsEmptyParts) {
  Report report("ignored");
  report.section("device", std::move(Report("ignored too").fact("total_bytes", "memory", 5U, "bytes")));
  report.list("warnings", "", {}).table(ReportTable("rows", "", {{"a"}})).fact("none", "none", {});
  EXPECT_EQ(report.to_json(-1), R"({"device":{"total_bytes":5},"warnings":[],"rows":[],"none":null})");
}

TEST(ReportJson, IsValidWhateverTheValuesAre) {
  Report report;
  report.fact("nan", "", std::nan("")).fact("text", "", "\xff\"\n").fact("big", "", ~std::uint64_t{0});
  EXPECT_EQ(report.to_json(-1), "{\"nan\":null,\"text\":\"\uFFFD\\\"\\n\",\"big\":18446744073709551615}");
}

TEST(ReportJson, IndentsOnRequest) { EXPECT_EQ(Report().fact("a", "", 1).to_json(), "{\n  \"a\": 1\n}"); }

TEST(Report, RefusesAKeyThatIsEmptyOrTaken) {
  EXPECT_THAT([] { Report("Graph").fact("", "x", 1); }, ThrowsMessage<UsageError>(HasSubstr("has no key")));
  EXPECT_THAT([] { Report("Graph").fact("a", "x", 1).list("a", "y", {}); },
              ThrowsMessage<UsageError>(HasSubstr("key 'a' is used twice in report 'Graph'")));
  EXPECT_THAT([] { Report().section("a", Report()).table(ReportTable("a", "", {{"b"}})); },
              ThrowsMessage<UsageError>(HasSubstr("used twice in a report")));
}

TEST(ReportTable, RefusesRowsAndColumnsThatDoNotFit) {
  EXPECT_THAT(
      [] {
        ReportTable("t", "", {{"a"}, {"b"}}).row({1});
      },
      ThrowsMessage<UsageError>(HasSubstr("must have 2 values, got 1")));
  EXPECT_THAT([] { ReportTable("t", "", {}); }, ThrowsMessage<UsageError>(HasSubstr("has no columns")));
  EXPECT_THAT([] { ReportTable("t", "", {{"a"}, {"a"}}); }, ThrowsMessage<UsageError>(HasSubstr("two columns")));
  EXPECT_THAT([] { ReportTable("t", "", {{""}}); }, ThrowsMessage<UsageError>(HasSubstr("has no key")));
}

}  // namespace
}  // namespace pianola::report_test
