#include <pianola/training/sgd.hpp>

#include <pianola/training/testing/optimizer_fixture.hpp>

#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/signbit.h>

#include <memory>
#include <optional>

namespace pianola::sgd_test {
namespace {

using ::testing::AllOf;
using testing::expect_same;
using ::testing::HasSubstr;
using testing::Problem;
using testing::refusal;
using testing::same;

const SGDOptions kForms[] = {{.lr = 0.1},
                             {.lr = 0.1, .weight_decay = 0.01, .maximize = true},
                             {.lr = 0.1, .momentum = 0.9},
                             {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true},
                             {.lr = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.01}};

class SgdTest : public testing::OptimizerTest {
 protected:
  // What torch's Python does: the host knows which step is the first.
  class Reference {
   public:
    Reference(std::vector<at::Tensor> parameters, const SGDOptions& options)
        : parameters_(std::move(parameters)), options_(options), rate_(at::full({}, options.lr, device())) {}

    // With a `scale`, the gradients are divided by it, in place.
    void step(const std::vector<at::Tensor>& gradients, const std::optional<at::Tensor>& scale = {}) {
      const at::NoGradGuard no_grad;
      const bool first = sums_.empty() && options_.momentum != 0;
      if (first) {
        for (const at::Tensor& gradient : gradients) sums_.push_back(at::empty_like(gradient));
      }
      run(parameters_, gradients, sums_, first, scale);
    }

    // For dtypes that the CPU's kernel gets wrong: in float32, rounded at the end.
    void step_widened(const std::vector<at::Tensor>& gradients) {
      const at::NoGradGuard no_grad;
      const bool first = sums_.empty() && options_.momentum != 0;
      if (first) sums_ = gradients;
      std::vector<at::Tensor> parameters = widened(parameters_), sums = widened(sums_);
      run(parameters, widened(gradients), sums, first);
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        parameters_[i].copy_(parameters[i]);
        if (!sums.empty()) sums_[i].copy_(sums[i]);
      }
    }

    void run(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& gradients,
             const std::vector<at::Tensor>& sums, bool first, const std::optional<at::Tensor>& scale = {}) const {
      at::_fused_sgd_(parameters, gradients, sums, options_.weight_decay, options_.momentum, rate_, options_.dampening,
                      options_.nesterov, options_.maximize, first, scale);
    }

    static std::vector<at::Tensor> widened(const std::vector<at::Tensor>& tensors) {
      std::vector<at::Tensor> wide;
      for (const at::Tensor& tensor : tensors) wide.push_back(tensor.to(at::kFloat));
      return wide;
    }

    std::vector<at::Tensor> parameters_, sums_;
    SGDOptions options_;
    at::Tensor rate_;
  };

  static std::vector<at::Tensor> gradients(const Problem& problem, std::uint64_t seed) {
    std::vector<at::Tensor> made;
    for (const at::Tensor& parameter : problem.parameters) {
      made.push_back(randn(parameter.sizes(), seed).to(parameter.scalar_type()));
      made.back().view({-1})[0].fill_(-0.0);
    }
    return made;
  }

  static void give(const Problem& problem, const std::vector<at::Tensor>& gradients) {
    for (std::size_t i = 0; i < gradients.size(); ++i) problem.parameters[i].mutable_grad() = gradients[i].clone();
  }

  static void expect_bits(const at::Tensor& actual, const at::Tensor& expected) {
    EXPECT_TRUE(same(actual, expected));
    EXPECT_TRUE(same(at::signbit(actual), at::signbit(expected))) << "the sign of a zero";
  }
};
PIANOLA_ON_EVERY_DEVICE(SgdTest);

TEST_P(SgdTest, EqualsAStepThatKnowsTheFirstFromTheHost) {
  for (const SGDOptions& options : kForms) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      const Problem one(device(), dtype), other(device(), dtype);
      one.parameters[0].detach().view({-1})[0].fill_(-0.0);
      other.parameters[0].detach().view({-1})[0].fill_(-0.0);
      SGD sgd(one.parameters, options);
      Reference reference(other.parameters, options);
      for (std::uint64_t step = 0; step < 4; ++step) {
        give(one, gradients(one, step));
        sgd.step();
        if (dtype == at::kBFloat16 && !on_cuda()) {
          reference.step_widened(gradients(other, step));
        } else {
          reference.step(gradients(other, step));
        }
        for (std::size_t i = 0; i < one.parameters.size(); ++i) {
          expect_bits(one.parameters[i].detach(), other.parameters[i].detach());
          if (options.momentum != 0) expect_bits(sgd.state()[i].tensor, reference.sums_[i]);
        }
      }
    }
  }
}

// Few enough elements for the CPU's kernel to get them right.
TEST_P(SgdTest, EqualsTheKernelInHalfPrecision) {
  for (const SGDOptions& options : kForms) {
    const at::Tensor one = randn({5}).to(at::kHalf).requires_grad_(), other = one.detach().clone();
    SGD sgd(std::vector<at::Tensor>{one}, options);
    Reference reference({other}, options);
    for (std::uint64_t step = 0; step < 4; ++step) {
      one.mutable_grad() = randn({5}, step).to(at::kHalf);
      sgd.step();
      reference.step({one.grad()});
      expect_bits(one.detach(), other);
    }
  }
}

TEST_P(SgdTest, CapturedEqualsEager) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const SGDOptions& options : kForms) {
      const auto make = [&](const std::vector<at::Tensor>& parameters) {
        return std::make_unique<SGD>(parameters, options);
      };
      expect_replays_equal_eager(make, dtype);
    }
  }
}

TEST_P(SgdTest, LeavesEverythingWhereAGradientIsNotFinite) {
  for (const SGDOptions& options : kForms) {
    Problem one(device()), other(device());
    SGD tested(one.parameters, options), reference(other.parameters, options);
    for (const float found_inf : {1.0F, 0.0F, 1.0F, 0.0F}) {  // also in the first step
      for (const auto& [problem, sgd] : {std::pair(&one, &tested), std::pair(&other, &reference)}) {
        sgd->zero_grad();
        problem->backward();
      }
      const auto before = testing::clone_all(all_of(tested));
      tested.step({.found_inf = flag(found_inf)});
      if (found_inf == 1) {
        expect_same(all_of(tested), before);
      } else {
        reference.step();
        expect_same(all_of(tested), all_of(reference));
      }
    }
  }
}

TEST_P(SgdTest, UnscalesGradientsAsTheKernelDoes) {
  for (const SGDOptions& options : kForms) {
    const Problem one(device()), other(device());
    SGD scaled(one.parameters, options);
    Reference reference(other.parameters, options);
    for (std::uint64_t step = 0; step < 3; ++step) {
      const std::vector<at::Tensor> plain = gradients(one, step);
      std::vector<at::Tensor> large;
      for (const at::Tensor& gradient : plain) large.push_back(gradient * 8);
      give(one, large);
      scaled.step({.scale = flag(8), .found_inf = flag(0)});
      reference.step(large, flag(8));
      for (std::size_t i = 0; i < plain.size(); ++i) {
        EXPECT_TRUE(same(one.parameters[i].detach(), other.parameters[i].detach()));
        EXPECT_TRUE(same(one.parameters[i].grad(), plain[i]));
      }
    }
  }
}

TEST_P(SgdTest, SkipsParametersWithoutGradients) {
  Problem problem(device());
  SGD sgd(problem.parameters, {.lr = 0.1, .momentum = 0.9});
  const at::Tensor before = problem.parameters[2].detach().clone();
  problem.backward(/*without=*/2);
  sgd.step();
  EXPECT_TRUE(same(problem.parameters[2].detach(), before));
  problem.parameters[2].mutable_grad() = at::full_like(before, 2);
  sgd.step();
  EXPECT_TRUE(same(sgd.state()[2].tensor, at::full_like(before, 2))) << "its first step is its own";
}

TEST_P(SgdTest, WithDampeningWantsAllGradients) {
  Problem problem(device());
  SGD sgd(problem.parameters, {.momentum = 0.9, .dampening = 0.5});
  problem.backward(/*without=*/2);
  EXPECT_THAT(refusal<UsageError>("dampening with a missing gradient", [&] { sgd.step(); }),
              AllOf(HasSubstr("only 3 of 4 in group 0 have"), HasSubstr("groups of their own")));
}

TEST_P(SgdTest, NamesOptionsOutOfRange) {
  const auto make = [](const SGDOptions& options) { SGD(std::vector<at::Tensor>{randn({2})}, options); };
  EXPECT_THAT(refusal<UsageError>("a negative momentum", [&] { make({.momentum = -1}); }),
              HasSubstr("momentum must be finite and 0 or more, got -1"));
  EXPECT_THAT(refusal<UsageError>("a negative weight decay", [&] { make({.weight_decay = -1}); }),
              HasSubstr("weight_decay must be finite and 0 or more"));
  EXPECT_THAT(refusal<UsageError>("nesterov alone", [&] { make({.nesterov = true}); }),
              HasSubstr("nesterov wants a momentum and no dampening"));
}

}  // namespace
}  // namespace pianola::sgd_test
