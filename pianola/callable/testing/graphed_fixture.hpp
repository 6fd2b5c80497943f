#pragma once
#include <pianola/callable/graphed.hpp>
#include <pianola/callable/testing/twins.hpp>
#include <pianola/trace/testing/autocast.hpp>

#include <string>
#include <vector>

namespace pianola::testing {

/// Tests of `graphed`: what it tells is kept in `reasons`.
class GraphedTest : public CallableTest {
 protected:
  struct Autocast : AutocastRegion {
    Autocast() : AutocastRegion(device().type()) {}
  };

  [[nodiscard]] GraphedOptions logged(GraphedOptions options = {}) {
    options.on_fallback = [this](const std::string& reason) { reasons.push_back(reason); };
    return options;
  }

  static at::Tensor batch(std::uint64_t seed, std::int64_t rows = 8) { return randn({rows, 12}, seed); }

  /// The signature of the latest call.
  static SignatureInfo latest(const Graphed& graphed) { return graphed.info().signatures.at(0); }
  static std::size_t replays(const Graphed& graphed) {
    std::size_t sum = 0;
    for (const SignatureInfo& one : graphed.info().signatures) sum += one.replays;
    return sum;
  }

  static at::Tensor square(const at::Tensor& x) { return (x * x).mean(); }

  static void expect_same_state(const torch::nn::Module& actual, const torch::nn::Module& expected,
                                const std::string& when = "") {
    expect_same(state_of_module(actual), state_of_module(expected), when);
  }

  std::vector<std::string> reasons;
};

}  // namespace pianola::testing
