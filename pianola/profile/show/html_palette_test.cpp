#include <pianola/profile/show/html_palette.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace pianola::profiling::html_palette_test {
namespace {

using Triple = std::array<double, 3>;
using Matrix = std::array<Triple, 3>;

Triple multiplied(const Matrix& matrix, const Triple& v) {
  Triple result{};
  for (std::size_t i = 0; i < 3; ++i) result[i] = matrix[i][0] * v[0] + matrix[i][1] * v[1] + matrix[i][2] * v[2];
  return result;
}

// sRGB "#rrggbb" as linear light, 0 to 1 (IEC 61966-2-1).
Triple linear(std::string_view colour) {
  Triple rgb{};
  for (std::size_t i = 0; i < 3; ++i) {
    int value = 0;
    std::from_chars(colour.data() + 1 + 2 * i, colour.data() + 3 + 2 * i, value, 16);
    const double c = value / 255.0;
    rgb[i] = c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4);
  }
  return rgb;
}

double luminance(std::string_view colour) {
  const Triple rgb = linear(colour);
  return 0.2126 * rgb[0] + 0.7152 * rgb[1] + 0.0722 * rgb[2];
}

double contrast(std::string_view a, std::string_view b) {
  const double one = luminance(a) + 0.05;
  const double other = luminance(b) + 0.05;
  return std::max(one, other) / std::min(one, other);
}

Triple lab(const Triple& rgb) {
  constexpr Matrix kToXyz = {{{0.4124, 0.3576, 0.1805}, {0.2126, 0.7152, 0.0722}, {0.0193, 0.1192, 0.9505}}};
  Triple xyz = multiplied(kToXyz, rgb);
  xyz[0] /= 0.9505;
  xyz[2] /= 1.089;
  for (double& v : xyz) v = v > 0.008856 ? std::cbrt(v) : 7.787 * v + 16.0 / 116;
  return {116 * xyz[1] - 16, 500 * (xyz[0] - xyz[1]), 200 * (xyz[1] - xyz[2])};
}

struct Vision {
  const char* name;
  Matrix matrix;
};

// Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency" (2009),
// severity 1.0.
constexpr std::array kVisions = {
    Vision{"full", {{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}}},
    Vision{"protanopia",
           {{{0.152286, 1.052583, -0.204868}, {0.114503, 0.786281, 0.099216}, {-0.003882, -0.048116, 1.051998}}}},
    Vision{"deuteranopia",
           {{{0.367322, 0.860646, -0.227968}, {0.280085, 0.672501, 0.047413}, {-0.011820, 0.042940, 0.968881}}}},
    Vision{"tritanopia",
           {{{1.255528, -0.076749, -0.178779}, {-0.078411, 0.930809, 0.147602}, {0.004733, 0.691367, 0.303900}}}}};

double difference(std::string_view a, std::string_view b, const Vision& vision) {
  const auto seen = [&](std::string_view colour) {
    Triple rgb = multiplied(vision.matrix, linear(colour));
    for (double& c : rgb) c = std::clamp(c, 0.0, 1.0);
    return lab(rgb);
  };
  const Triple x = seen(a);
  const Triple y = seen(b);
  return std::hypot(x[0] - y[0], x[1] - y[1], x[2] - y[2]);
}

struct Scheme {
  const char* name;
  std::string_view PageColour::*colour;
};
void PrintTo(const Scheme& scheme, std::ostream* out) { *out << scheme.name; }

class HtmlPaletteTest : public ::testing::TestWithParam<Scheme> {
 protected:
  static std::string_view colour(std::string_view name) {
    for (const PageColour& c : page_colours()) {
      if (c.name == name) return c.*GetParam().colour;
    }
    ADD_FAILURE() << "no colour " << name;
    return "#000000";
  }
};

TEST_P(HtmlPaletteTest, TextIsReadableOnWhatItStandsOn) {
  struct Pair {
    const char* text;
    const char* ground;
  };
  for (const Pair& pair :
       {Pair{"text", "page"}, Pair{"text", "raised"}, Pair{"muted", "page"}, Pair{"muted", "raised"},
        Pair{"accent", "page"}, Pair{"accent", "raised"}, Pair{"text", "range"}, Pair{"good", "page"},
        Pair{"caution", "page"}, Pair{"neutral", "page"}, Pair{"on-mark", "good"}, Pair{"on-mark", "caution"},
        Pair{"on-mark", "neutral"}, Pair{"on-mark", "accent"}}) {
    EXPECT_GE(contrast(colour(pair.text), colour(pair.ground)), 4.5) << pair.text << " on " << pair.ground;
  }
}

TEST_P(HtmlPaletteTest, MarksStandOutFromThePage) {
  for (const char* mark :
       {"kernel", "memset", "copy", "launch", "graph", "synchronization", "data", "device", "accent"}) {
    EXPECT_GE(contrast(colour(mark), colour("page")), 3.0) << mark;
  }
}

TEST_P(HtmlPaletteTest, MarksOfOneRowDifferForEveryKindOfColourVision) {
  const std::vector<std::vector<const char*>> rows = {
      {"kernel", "copy", "memset"},
      {"launch", "graph", "copy", "synchronization"},
      {"kernel", "launch", "synchronization", "data", "copy", "device"}};  // in the bar of the idle time
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        for (const Vision& vision : kVisions) {
          EXPECT_GE(difference(colour(row[i]), colour(row[j]), vision), 20)
              << row[i] << ", " << row[j] << ": " << vision.name;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schemes, HtmlPaletteTest,
                         ::testing::Values(Scheme{"Light", &PageColour::light}, Scheme{"Dark", &PageColour::dark}),
                         [](const auto& scheme) { return std::string(scheme.param.name); });

TEST(HtmlPaletteMeasureTest, ContrastIsThatOfWcag) {
  EXPECT_DOUBLE_EQ(contrast("#000000", "#ffffff"), 21.0);
  EXPECT_NEAR(contrast("#777777", "#ffffff"), 4.48, 0.005);
}

TEST(HtmlPaletteCssTest, DeclaresEachColourOfTheScheme) {
  EXPECT_THAT(colour_declarations(false), ::testing::StartsWith("--page:#ffffff;--raised:#f4f5f7;"));
  EXPECT_THAT(colour_declarations(true), ::testing::StartsWith("--page:#14171b;--raised:#1c2026;"));
  const std::string css = colour_declarations(true);
  EXPECT_EQ(static_cast<std::size_t>(std::count(css.begin(), css.end(), ';')), page_colours().size());
}

}  // namespace
}  // namespace pianola::profiling::html_palette_test
