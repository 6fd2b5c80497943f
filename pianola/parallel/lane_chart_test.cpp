#include <pianola/parallel/lane_chart.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace pianola::parallel::lane_chart_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

struct Element {
  std::string name;
  std::map<std::string, std::string> attributes;
  std::string text;  // right behind its start
  double number(const std::string& attribute) const { return std::stod(attributes.at(attribute)); }
};

// As much of XML as an SVG picture needs; throws where it is not well-formed. By hand: torch's std::regex is not ours.
class Xml {
 public:
  explicit Xml(std::string_view text) : rest_(text) {
    while (!rest_.empty()) rest_.front() == '<' ? tag() : content();
    if (!open_.empty()) throw std::runtime_error("<" + open_.back() + "> is not closed");
  }
  std::vector<Element> elements;

  [[nodiscard]] std::vector<Element> named(const std::string& name) const {
    std::vector<Element> found;
    std::copy_if(elements.begin(), elements.end(), std::back_inserter(found),
                 [&](const Element& element) { return element.name == name; });
    return found;
  }
  /// With one of its classes.
  [[nodiscard]] std::vector<Element> of_class(const std::string& name) const {
    std::vector<Element> found;
    for (const Element& element : elements) {
      const auto at = element.attributes.find("class");
      if (at != element.attributes.end() && (" " + at->second + " ").find(" " + name + " ") != std::string::npos) {
        found.push_back(element);
      }
    }
    return found;
  }

 private:
  std::string until(char end) {
    const std::size_t at = rest_.find(end);
    if (at == std::string_view::npos) throw std::runtime_error(std::string("no ") + end + " any more");
    std::string result(rest_.substr(0, at));
    rest_.remove_prefix(at + 1);
    return result;
  }
  static void check_text(const std::string& text) {
    for (std::size_t at = 0; (at = text.find('&', at)) != std::string::npos; ++at) {
      const std::size_t end = text.find(';', at);
      if (end == std::string::npos || end - at > 6) throw std::runtime_error("a bare & in " + text);
    }
    for (const char c : text) {
      if ((c < ' ' && c != '\n') || c > '~' || c == '<') throw std::runtime_error("a character that is not escaped");
    }
  }
  void content() {
    const std::string text(rest_.substr(0, rest_.find('<')));
    rest_.remove_prefix(text.size());
    check_text(text);
    if (!elements.empty()) elements.back().text += text;
  }
  void tag() {
    rest_.remove_prefix(1);
    std::string inside = until('>');
    if (inside.starts_with('/')) {
      if (open_.empty() || open_.back() != inside.substr(1)) throw std::runtime_error("unexpected <" + inside + ">");
      return open_.pop_back();
    }
    const bool closed = inside.ends_with('/');
    if (closed) inside.pop_back();
    Element element{.name = inside.substr(0, inside.find(' ')), .attributes = {}, .text = {}};
    for (std::size_t at = element.name.size(); at < inside.size();) {
      const std::size_t equals = inside.find("=\"", at);
      const std::size_t end = inside.find('"', equals + 2);
      if (inside[at] != ' ' || end == std::string::npos) throw std::runtime_error("bad attributes: " + inside);
      const std::string value = inside.substr(equals + 2, end - equals - 2);
      check_text(value);
      if (!element.attributes.emplace(inside.substr(at + 1, equals - at - 1), value).second) {
        throw std::runtime_error("an attribute twice: " + inside);
      }
      at = end + 1;
    }
    if (!closed) open_.push_back(element.name);
    elements.push_back(std::move(element));
  }

  std::string_view rest_;
  std::vector<std::string> open_;
};

std::string svg_of(const LaneChart& chart, const std::string& title = "A step") {
  std::ostringstream out;
  write_svg(out, chart, title);
  return out.str();
}

// Boxes side by side on each lane.
LaneChart chart_with(std::size_t boxes, std::size_t lanes, double us = 2.5) {
  LaneChart chart{.boxes = {}, .lanes = lanes, .makespan_us = 0, .serial_us = 0};
  for (std::size_t i = 0; i < boxes; ++i) {
    const double start = static_cast<double>(i / lanes) * us;
    chart.boxes.push_back({.name = i % 2 == 0 ? "aten::mm" : "aten::_foreach_addcdiv_",
                           .lane = static_cast<std::uint32_t>(i % lanes),
                           .start_us = start,
                           .us = us,
                           .critical = i % lanes == 0});
    chart.makespan_us = std::max(chart.makespan_us, start + us);
    chart.serial_us += us;
  }
  return chart;
}

class LaneChartOf : public ::testing::TestWithParam<std::size_t> {};
TEST_P(LaneChartOf, IsWellFormedAndHoldsAllItDraws) {
  const Xml xml(svg_of(chart_with(GetParam(), 4)));
  const Element& svg = xml.elements.front();
  EXPECT_EQ(svg.name, "svg");
  EXPECT_LE(svg.number("width"), 1600);
  EXPECT_GT(xml.named("rect").size(), GetParam());
  for (const Element& rect : xml.named("rect")) {
    const double x = rect.attributes.count("x") != 0 ? rect.number("x") : 0;
    const double y = rect.attributes.count("y") != 0 ? rect.number("y") : 0;
    EXPECT_GE(x, 0);
    EXPECT_GE(rect.number("width"), 0);
    EXPECT_LE(x + rect.number("width"), svg.number("width"));
    EXPECT_LE(y + rect.number("height"), svg.number("height"));
  }
  const auto titles = xml.named("title");
  const auto is_of_a_unit = [](const Element& title) { return title.text.find(" at ") != std::string::npos; };
  EXPECT_EQ(static_cast<std::size_t>(std::count_if(titles.begin(), titles.end(), is_of_a_unit)), GetParam());
}
INSTANTIATE_TEST_SUITE_P(Units, LaneChartOf, ::testing::Values(1U, 10U, 300U, 2000U),
                         [](const auto& units) { return std::to_string(units.param); });

TEST(LaneChart, PlacesBoxesByLaneAndTime) {
  const LaneChart chart{.boxes = {{.name = "aten::mm", .lane = 0, .start_us = 0, .us = 10},
                                  {.name = "aten::mm", .lane = 1, .start_us = 5, .us = 5}},
                        .lanes = 2,
                        .makespan_us = 10,
                        .serial_us = 15};
  const auto boxes = Xml(svg_of(chart)).of_class("box");
  ASSERT_EQ(boxes.size(), 2U);
  EXPECT_GT(boxes[1].number("y"), boxes[0].number("y") + boxes[0].number("height"));
  EXPECT_NEAR(boxes[1].number("x"), boxes[0].number("x") + boxes[0].number("width") / 2, 0.02);
  EXPECT_NEAR(boxes[1].number("width"), boxes[0].number("width") / 2, 0.02);
}

TEST(LaneChart, NamesBoxesWhereThereIsRoomAndAllOfThemWhenPointedAt) {
  LaneChart chart = chart_with(8, 2, 100);
  chart.boxes.push_back({.name = "aten::gelu_backward", .lane = 1, .start_us = 400, .us = 2});
  const std::string svg = svg_of(chart);
  EXPECT_THAT(svg, HasSubstr(">mm</text>"));
  EXPECT_THAT(svg, HasSubstr(">foreach_addcdiv_</text>"));
  EXPECT_THAT(svg, HasSubstr("<title>aten::mm: 100 us at 0.00 us, lane 1, on the longest path</title>"));
  EXPECT_THAT(svg, Not(HasSubstr(">gelu")));
  EXPECT_THAT(svg, HasSubstr("<title>aten::gelu_backward: 2.0 us at 400 us, lane 2</title>"));
}

TEST(LaneChart, OutlinesTheLongestPathAndShowsItsLengthBesideThatOfAll) {
  const Xml xml(svg_of(chart_with(12, 3, 20)));
  EXPECT_EQ(xml.of_class("line").size(), 4U);
  const std::vector<std::string> texts = [&] {
    std::vector<std::string> all;
    for (const Element& text : xml.named("text")) all.push_back(text.text.substr(0, text.text.find('\n')));
    return all;
  }();
  for (const char* text : {"lane 1", "lane 3", "one by one", "240 us", "3 lanes", "longest path", "80.0 us"}) {
    EXPECT_THAT(texts, Contains(text));
  }
}

TEST(LaneChart, HasRoundTicks) {
  const std::string svg = svg_of({.boxes = {{.name = "aten::mm", .lane = 0, .start_us = 0, .us = 84.3}},
                                  .lanes = 1,
                                  .makespan_us = 84.3,
                                  .serial_us = 84.3});
  for (const char* tick : {">0<", ">20<", ">80<"}) EXPECT_THAT(svg, HasSubstr(tick));
  EXPECT_THAT(svg, Not(HasSubstr(">100<")));
}

TEST(LaneChart, EscapesWhatXmlCannotHold) {
  LaneChart chart = chart_with(2, 1, 50);
  chart.boxes[0].name = "f<a&b>(\"x\")\x01\xff";
  const std::string svg = svg_of(chart, "a < b & \"c\"");
  EXPECT_NO_THROW(Xml{svg});
  EXPECT_THAT(svg, HasSubstr("f&lt;a&amp;b&gt;(&quot;x&quot;)??: 50.0 us"));
  EXPECT_THAT(svg, HasSubstr("<title>a &lt; b &amp; &quot;c&quot;</title>"));
}

TEST(LaneChart, OfNothingSaysSo) {
  const std::string svg = svg_of({});
  EXPECT_NO_THROW(Xml{svg});
  EXPECT_THAT(svg, HasSubstr("nothing to draw"));
}

TEST(LaneChart, OfUnitsThatTakeNoTimeIsStillAPicture) {
  EXPECT_NO_THROW(Xml{svg_of(chart_with(3, 1, 0))});
  EXPECT_THAT(svg_of(chart_with(3, 1, 0)), Not(HasSubstr("nan")));
}

struct Coloured {
  const char* op;
  const char* kind;
};
class LaneChartColour : public ::testing::TestWithParam<Coloured> {};
TEST_P(LaneChartColour, TellsTheKindOfWork) {
  const std::string svg = svg_of({.boxes = {{.name = GetParam().op, .lane = 0, .start_us = 0, .us = 3}},
                                  .lanes = 1,
                                  .makespan_us = 3,
                                  .serial_us = 3});
  EXPECT_THAT(svg, HasSubstr(std::string(">") + GetParam().kind + ", 3.0 us</text>"));
}
INSTANTIATE_TEST_SUITE_P(
    Operators, LaneChartColour,
    ::testing::Values(Coloured{"aten::addmm", "matrix product"}, Coloured{"aten::_scaled_mm", "matrix product"},
                      Coloured{"aten::gelu_backward", "elementwise"}, Coloured{"aten::add_", "elementwise"},
                      Coloured{"aten::native_dropout", "elementwise"},
                      Coloured{"aten::native_layer_norm_backward", "reduction, normalization"},
                      Coloured{"aten::_log_softmax", "reduction, normalization"},
                      Coloured{"aten::cudnn_batch_norm", "reduction, normalization"},
                      Coloured{"aten::_fused_rms_norm", "reduction, normalization"},
                      Coloured{"aten::_scaled_dot_product_flash_attention", "attention"},
                      Coloured{"aten::convolution_backward", "convolution"},
                      Coloured{"aten::_foreach_mul_", "optimizer"}, Coloured{"aten::_fused_adamw_", "optimizer"},
                      Coloured{"aten::copy_", "copy, fill"}, Coloured{"copy of an input", "copy, fill"},
                      Coloured{"aten::embedding_dense_backward", "other"}, Coloured{"my_ops::stencil", "other"},
                      Coloured{"nodes outside any operation", "other"}),
    [](const auto& shown) { return "Operator" + std::to_string(shown.index); });

TEST(LaneChart, IsACopyOfWhatThePlanSays) {
  LaneChart chart;
  {
    Plan plan;
    plan.units = {{.name = "aten::mm", .nodes = {0}, .cost_us = 4}, {.name = "aten::add", .nodes = {1}, .cost_us = 2}};
    plan.lanes = {.lane_of = {0, 1}, .start_us = {0, 1}, .used = 2, .makespan_us = 4};
    plan.critical = {.units = {0}, .us = 4};
    plan.serial_us = 6;
    chart = chart_of(plan);
  }
  EXPECT_EQ(chart.lanes, 2U);
  EXPECT_EQ(chart.makespan_us, 4);
  EXPECT_EQ(chart.serial_us, 6);
  std::vector<std::string> boxes;
  for (const LaneBox& box : chart.boxes) {
    boxes.push_back(box.name + " " + std::to_string(box.lane) + (box.critical ? " critical" : ""));
  }
  EXPECT_THAT(boxes, ElementsAre("aten::mm 0 critical", "aten::add 1"));
  EXPECT_EQ(chart.boxes[1].start_us, 1);
  EXPECT_EQ(chart.boxes[1].us, 2);
}

}  // namespace
}  // namespace pianola::parallel::lane_chart_test
