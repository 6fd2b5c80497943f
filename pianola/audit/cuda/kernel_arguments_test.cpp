#include <pianola/audit/cuda/kernel_arguments.hpp>

#include <pianola/audit/cuda/testing/raw_kernel.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/graph/testing/mlp.hpp>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/relu.h>
#include <torch/library.h>

#include <functional>
#include <optional>
#include <source_location>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace pianola::kernel_arguments_test {
namespace {

using namespace auditing;  // NOLINT(google-build-using-namespace): steps in that one would count as Pianola's own code

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

int line_here(std::source_location place = std::source_location::current()) { return static_cast<int>(place.line()); }

/// The scale of an operator that launches the kernel itself, as a library keeps a number of its own.
float library_scale = 1;
const auditing::RawKernel* library_kernel = nullptr;

at::Tensor scaled(const at::Tensor& t) {
  at::Tensor result = t.clone();
  (*library_kernel)(result, library_scale);
  return result;
}
at::Tensor scaled_by(const at::Tensor& t, double factor) {
  at::Tensor result = t.clone();
  (*library_kernel)(result, static_cast<float>(factor));
  return result;
}

class KernelArgumentsTest : public testing::DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    library_kernel = &kernel.emplace();
    library_scale = 1;
    x = randn({4, 4});
    at::relu(at::mm(x, x));
    synchronize();
  }
  void TearDown() override {
    kernel.reset();
    DeviceTest::TearDown();
  }

  std::vector<Finding> findings(const std::function<void()>& step, const std::function<void()>& between = {}) {
    return compare_captures(device(), step, between, options);
  }
  /// "PG302: 0.5 -> 0.25 (as integers 1056964608 -> 1048576000)".
  std::vector<std::string> evidence(const std::function<void()>& step, const std::function<void()>& between = {}) {
    std::vector<std::string> all;
    for (const Finding& finding : findings(step, between)) {
      all.push_back(std::string(finding.rule->id) + ": " + finding.evidence);
    }
    return all;
  }

  static at::Tensor call(const char* name, std::vector<c10::IValue> arguments) {
    static const torch::Library library = [] {
      torch::Library made(torch::Library::DEF, "pianola_kernel_arguments", std::nullopt, __FILE__, __LINE__);
      made.def("scaled(Tensor x) -> Tensor", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &scaled));
      made.def("scaled_by(Tensor x, float factor) -> Tensor",
               torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &scaled_by));
      return made;
    }();
    c10::Stack stack(arguments.begin(), arguments.end());
    c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(stack);
    return stack[0].toTensor();
  }

  std::optional<auditing::RawKernel> kernel;
  AuditOptions options;
  at::Tensor x;
};
INSTANTIATE_TEST_SUITE_P(On, KernelArgumentsTest, ::testing::Values("cuda"), testing::device_name);

TEST_P(KernelArgumentsTest, ThatStayTheSameAreNoHazard) {
  EXPECT_THAT(evidence([&] { (*kernel)(x, 0.5F); }, [] {}), IsEmpty());
}

TEST_P(KernelArgumentsTest, ThatChangeBetweenIterationsAreFrozen) {
  float factor = 0.5F;
  int line = 0;
  const auto found = findings(
      [&] {
        at::relu(x);
        (*kernel)(x, factor), line = line_here();
      },
      [&] { factor = 0.25F; });
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].rule->id, "PG302");
  EXPECT_EQ(found[0].evidence, "0.5 -> 0.25 (as integers 1056964608 -> 1048576000)");
  EXPECT_EQ(found[0].what, "argument 2 of kernel scale changes between iterations");
  EXPECT_THAT(found[0].place.file, HasSubstr("kernel_arguments_test.cpp"));
  EXPECT_EQ(found[0].place.line, line);
}

TEST_P(KernelArgumentsTest, ThatTheStepItselfMovesOnAreFrozen) {
  float count = 0;
  const auto step = [&] { (*kernel)(x, count += 1); };
  EXPECT_THAT(evidence(step), ElementsAre("PG302: 2 -> 3 (as integers 1073741824 -> 1077936128)"));
  EXPECT_THAT(evidence(step, [] {}), ElementsAre(HasSubstr("PG302: 5 -> 6")));
}

TEST_P(KernelArgumentsTest, ThatPointElsewhereAreMovedPointers) {
  at::Tensor buffer = randn({4, 4});
  const at::Tensor other = randn({4, 4});
  options.names = {{.name = "buffer", .tensor = other}};
  EXPECT_THAT(evidence([&] { (*kernel)(buffer, 0.5F); }, [&] { buffer = other; }),
              ElementsAre(AllOf(HasSubstr("PG405: 0x"), HasSubstr(", which is 'buffer'"))));
}

TEST_P(KernelArgumentsTest, ThatPointToResultsOfTheStepAreNoHazard) {
  at::Tensor kept;
  EXPECT_THAT(evidence(
                  [&] {
                    const at::Tensor y = at::relu(x);
                    (*kernel)(y, 0.5F);
                    kept = at::mm(y, x);
                    (*kernel)(kept, 0.5F);
                  },
                  [] {}),
              IsEmpty());
}

TEST_P(KernelArgumentsTest, OfAtensOperationsAreLeftToTheTrace) {
  double factor = 0.5;
  EXPECT_THAT(evidence([&] { at::relu(x * factor); }, [&] { factor = 0.25; }), IsEmpty());
}

TEST_P(KernelArgumentsTest, OfOtherLibrariesOperationsNameTheOperation) {
  const auto found = findings([&] { call("pianola_kernel_arguments::scaled", {x}); }, [] { library_scale = 3; });
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].rule->id, "PG302");
  EXPECT_EQ(found[0].op, "pianola_kernel_arguments::scaled");
  EXPECT_THAT(found[0].place.file, HasSubstr("kernel_arguments_test.cpp"));
}

TEST_P(KernelArgumentsTest, ThatTheOperationShowsAreLeftToTheTrace) {
  double factor = 0.5;
  at::Tensor input = x;
  EXPECT_THAT(evidence(
                  [&] {
                    call("pianola_kernel_arguments::scaled_by", {input, factor});
                  },
                  [&] {
                    factor = 0.25;
                    input = randn({4, 4}, 5);
                  }),
              IsEmpty());
}

TEST_P(KernelArgumentsTest, OfATrainingStepAreNoHazard) {
  testing::Training training(device(), 0.1);
  const auto state = testing::clone_all(training.state());
  EXPECT_THAT(evidence([&] { training.step(); }, [&] { training.feed(3); }), IsEmpty());
  testing::expect_same(training.state(), state, "after three captures");
}

TEST_P(KernelArgumentsTest, LeaveGradientsAsTheyWere) {
  testing::Mlp model(device(), 2, 3);
  float factor = 0.5F;
  const auto step = [&] {
    const at::Tensor loss = model(x.expand({4, 4, 4}).reshape({4, 16})).sum();
    loss.backward();
    (*kernel)(x, factor);
  };
  EXPECT_THAT(evidence(step, [&] { factor = 2; }), ElementsAre(HasSubstr("PG302: 0.5 -> 2")));
  for (const at::Tensor& parameter : model.parameters) EXPECT_FALSE(parameter.grad().defined());
}

TEST_P(KernelArgumentsTest, OfAStepThatCannotBeCapturedAreNotTold) {
  EXPECT_THAT(evidence([&] { (void)x.sum().item<float>(); }, [] {}), IsEmpty());
  at::relu(x);
  synchronize();
}

TEST_P(KernelArgumentsTest, OfAnEmptyStepAreNone) {
  EXPECT_THAT(evidence([] {}, [] {}), IsEmpty());
}

TEST_P(KernelArgumentsTest, AreNotToldWhereTheStepTakesAnotherPath) {
  bool more = false;
  EXPECT_THAT(evidence(
                  [&] {
                    (*kernel)(x, more ? 1.0F : 2.0F);
                    if (more) at::relu(x);
                  },
                  [&] { more = true; }),
              IsEmpty());
}

TEST_P(KernelArgumentsTest, OfOneThatThrowsReachTheCaller) {
  EXPECT_THROW(findings([&] { throw std::domain_error("of the step"); }), std::domain_error);
}

}  // namespace
}  // namespace pianola::kernel_arguments_test
