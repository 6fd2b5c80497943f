#include <pianola/core/number_check.hpp>

#include <pianola/core/error.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

namespace pianola::number_check_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::string refusal(const std::function<void()>& check) {
  try {
    check();
  } catch (const UsageError& error) {
    return error.diagnosis().what;
  }
  return "";
}

TEST(NumberCheckTest, TellsTheNameTheBoundAndTheNumberAsItIs) {
  EXPECT_EQ(refusal([] { check_at_least(1, "warmup", 0); }), "warmup must be 1 or more, got 0");
  EXPECT_EQ(refusal([] { check_finite("dampening", std::nan("")); }), "dampening must be finite, got nan");
  EXPECT_EQ(refusal([] { check_not_negative("eps", -1e-9); }), "eps must be finite and 0 or more, got -1e-09");
  EXPECT_EQ(refusal([] { check_not_negative("lr", kInfinity); }), "lr must be finite and 0 or more, got inf");
  EXPECT_EQ(refusal([] { check_positive("div_factor", 0); }), "div_factor must be finite and above 0, got 0");
}

TEST(NumberCheckTest, AcceptsTheBoundItself) {
  EXPECT_EQ(refusal([] {
              check_at_least(1, "warmup", 1);
              check_finite("dampening", -1);
              check_not_negative("eps", 0);
              check_positive("div_factor", 1e-300);
            }),
            "");
}

}  // namespace
}  // namespace pianola::number_check_test
