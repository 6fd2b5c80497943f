#pragma once
#include <pianola/graph/graph.hpp>
#include <pianola/trace/testing/device_test.hpp>
#include <pianola/verify/verify.hpp>

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace pianola::testing {

using Tensors = std::vector<at::Tensor>;

/// Steps of both sides and all that they change are looked at before and after each verify().
class VerifyTest : public DeviceTest {
 protected:
  static std::vector<NamedTensor> named(const NamedTensors& tensors) {
    std::vector<NamedTensor> all;
    for (const auto& [name, tensor] : tensors) all.push_back({.name = name, .tensor = tensor});
    return all;
  }

  /// verify(), and that it leaves everything as it was: `watched` with their gradients, and the generator.
  template <typename Step>
  static VerifyReport verify_and_expect_untouched(const Step& eager, const Step& graphed, const NamedTensors& listed,
                                                  const VerifyOptions& options = {}, NamedTensors watched = {}) {
    watched.insert(watched.end(), listed.begin(), listed.end());
    const NamedTensors before = clone_all(watched);
    Tensors gradients, gradient_values;
    for (const auto& [name, tensor] : watched) {
      gradients.push_back(tensor.is_leaf() ? tensor.grad() : at::Tensor());
      gradient_values.push_back(gradients.back().defined() ? gradients.back().clone() : at::Tensor());
    }
    const at::Tensor generator_before = state_of(generator());
    VerifyReport report = verify(eager, graphed, named(listed), options);
    expect_same(watched, before, "after verify()");
    EXPECT_TRUE(same(state_of(generator()), generator_before)) << "the generator after verify()";
    for (std::size_t i = 0; i < watched.size(); ++i) {
      if (!watched[i].second.is_leaf()) continue;
      const at::Tensor now = watched[i].second.grad();
      EXPECT_TRUE(same(now, gradient_values[i])) << "gradient of " << watched[i].first;
      EXPECT_TRUE(now.is_same(gradients[i])) << "gradient of " << watched[i].first;
    }
    return report;
  }
};

inline std::vector<std::string> names_of(const std::vector<TensorDifference>& differences) {
  std::vector<std::string> names;
  for (const TensorDifference& difference : differences) names.push_back(difference.name);
  return names;
}

}  // namespace pianola::testing
