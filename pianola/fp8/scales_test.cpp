#include <pianola/fp8/scales.hpp>
#include <pianola/trace/testing/device_test.hpp>

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <limits>
#include <string>
#include <vector>

namespace pianola::fp8::scales_test {
namespace {

using ::testing::HasSubstr;
using testing::same;

constexpr float kInf = std::numeric_limits<float>::infinity();

class ScalesTest : public testing::DeviceTest {
 protected:
  static std::vector<float> floats(const at::Tensor& tensor) {
    const at::Tensor plain = tensor.cpu().contiguous();
    return {plain.const_data_ptr<float>(), plain.const_data_ptr<float>() + plain.numel()};
  }
};
PIANOLA_ON_EVERY_DEVICE(ScalesTest);

// One tensor's, as the note has it; in float64 what is exact there.
struct Reference {
  Reference(const Recipe& recipe, double largest)
      : history(static_cast<std::size_t>(recipe.amax_history_length), 0.0F), limit(largest) {}
  void update(float noted, const Recipe& recipe, std::int64_t number) {
    history[0] = 0;
    if (noted == 0 || !std::isfinite(noted)) return;
    if (history.size() > 1) {
      history.erase(history.begin() + 1);
      history.push_back(noted);
    }
    const float amax = recipe.amax_compute == AmaxCompute::most_recent || history.size() == 1
                           ? noted
                           : *std::max_element(history.begin(), history.end());
    if (number % recipe.interval != 0) return;
    const double exact = limit / std::ldexp(1.0, recipe.margin);
    scale = std::min(static_cast<float>(exact) / amax, std::numeric_limits<float>::max());
  }
  std::deque<float> history;
  float scale = 1;
  double limit;
};

TEST_P(ScalesTest, AreThoseOfTheFormulaForEachRecipe) {
  const std::vector<Recipe> recipes = {{.amax_history_length = 4},
                                       {.amax_history_length = 1},
                                       {.amax_history_length = 2, .amax_compute = AmaxCompute::most_recent},
                                       {.format = Format::e4m3, .margin = 2, .amax_history_length = 3},
                                       {.amax_history_length = 4, .interval = 3}};
  for (const Recipe& recipe : recipes) {
    const ScaleTable table(2, recipe, device());
    std::vector<Reference> references;
    for (int i = 0; i < 6; ++i)
      references.emplace_back(recipe, i % 3 == 2 ? largest_of(recipe.gradient_type()) : 448.0);
    for (std::int64_t number = 0; number < 20; ++number) {
      std::vector<float> noted = floats(randn({6}, static_cast<std::uint64_t>(number)).abs());
      if (number % 4 == 1) noted[1] = 0;  // it did not run
      if (number == 5) noted[2] = kInf;
      if (number == 7) noted[3] = 1e-42F;  // its scale is infinite in float32
      table.noted().copy_(torch::tensor(noted));
      table.update();
      std::vector<float> scales;
      for (std::size_t i = 0; i < 6; ++i) {
        references[i].update(noted[i], recipe, number);
        scales.push_back(references[i].scale);
        EXPECT_EQ(floats(table.history().select(1, static_cast<std::int64_t>(i))),
                  std::vector<float>(references[i].history.begin(), references[i].history.end()))
            << recipe.to_text() << ", update " << number << ", tensor " << i;
      }
      EXPECT_EQ(floats(table.scale()), scales) << recipe.to_text() << ", update " << number;
    }
  }
}

// More tensors than a block of threads has, and histories of more rows than it reads at once.
TEST_P(ScalesTest, AreThoseOfTheFormulaForLongHistories) {
  for (const Recipe& recipe : {Recipe{}, Recipe{.amax_history_length = 1500}, Recipe{.amax_history_length = 2049}}) {
    const ScaleTable table(15, recipe, device()), other(15, recipe, at::kCPU);
    other.history().copy_(at::rand_like(other.history()));
    table.history().copy_(other.history());
    for (std::uint64_t number = 0; number < 3; ++number) {
      const at::Tensor noted = randn({45}, number).abs().cpu();
      noted[7].zero_();
      other.noted().copy_(noted);
      table.noted().copy_(noted);
      other.update();
      table.update();
      EXPECT_TRUE(same(table.history().cpu(), other.history())) << recipe.to_text() << ", update " << number;
      EXPECT_TRUE(same(table.scale().cpu(), other.scale())) << recipe.to_text() << ", update " << number;
    }
  }
}

TEST_P(ScalesTest, TakeOverWhatACheckpointHad) {
  const Recipe recipe{.amax_history_length = 3};
  const ScaleTable table(1, recipe, device());
  table.noted().fill_(2.0);
  table.update();
  table.noted().fill_(3.0);
  const ScaleTable loaded(table.scale().clone(), table.history().clone(), table.updates().clone(), recipe);
  table.update();
  loaded.update();
  EXPECT_TRUE(same(loaded.scale(), table.scale()));
  EXPECT_TRUE(same(loaded.history(), table.history()));
  EXPECT_TRUE(same(loaded.updates(), table.updates()));
}

TEST_P(ScalesTest, WhatDoesNotFitIsRefused) {
  const ScaleTable table(1, {.amax_history_length = 3}, device());
  const auto said = [&](const at::Tensor& scale, const Recipe& recipe) {
    return testing::refusal<UsageError>(
        "scales", [&] { const ScaleTable other(scale, table.history(), table.updates(), recipe); });
  };
  EXPECT_THAT(said(table.scale(), {.amax_history_length = 5}),
              HasSubstr("amax histories of length 3, where the recipe has 5"));
  EXPECT_THAT(said(table.scale().to(at::kHalf), {.amax_history_length = 3}),
              HasSubstr("got Half [3], Float [3, 3] and Long []"));
  EXPECT_THAT(testing::refusal<UsageError>("a layer", [&] { (void)table.scale_of(1, Role::input); }),
              HasSubstr("scales of 1 layers, and none of layer 1"));
  for (const auto& [recipe, what] : std::vector<std::pair<Recipe, std::string>>{
           {{.amax_history_length = 0}, "amax_history_length must be 1 or more, got 0"},
           {{.interval = 0}, "interval must be 1 or more, got 0"},
           {{.margin = -1}, "margin must be 0 or more, got -1"},
           {{.margin = 200}, "margin must be 100 or less, got 200"}}) {
    EXPECT_THAT(testing::refusal<UsageError>("a recipe", [&, one = recipe] { one.check(); }), HasSubstr(what));
  }
}

}  // namespace
}  // namespace pianola::fp8::scales_test
