#pragma once
#include <pianola/callable/testing/twins.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace pianola::testing {

/// Tests that compare a graphed network with an eager twin that sees the same calls.
class MlpTwinsTest : public CallableTest {
 protected:
  struct Twins {
    explicit Twins(CallableOptions options = {})
        : eager(make_net<MlpNet>()),
          net(make_net<MlpNet>()),
          graphed(make_graphed_callable(net, {sample()}, options)) {}

    static at::Tensor sample() { return randn({8, 12}).requires_grad_(); }

    // One microbatch of each: forward and backward.
    void step(std::uint64_t seed) {
      const at::Tensor x = randn({8, 12}, seed).requires_grad_();
      const at::Tensor y = randn({8, 12}, seed).requires_grad_();
      loss_of(eager->forward(x)).backward();
      loss_of(graphed(y)).backward();
      EXPECT_TRUE(same(y.grad(), x.grad()));
    }
    static at::Tensor loss_of(const at::Tensor& out) { return (out * out).mean(); }

    // To parameters of both, at the same place.
    void each(const std::function<void(const at::Tensor&)>& change) const {
      for (const auto& one : {eager, net}) {
        for (const at::Tensor& parameter : one->parameters()) change(parameter);
      }
    }
    void expect_equal(const std::string& when) const {
      expect_same(state_of_module(*net), state_of_module(*eager), when);
    }

    std::shared_ptr<MlpNet> eager, net;
    GraphedCallable graphed;
  };
};

}  // namespace pianola::testing
