#include <pianola/trace/write_set.hpp>

#include <pianola/trace/testing/device_test.hpp>
#include <pianola/trace/testing/reused_identity.hpp>

#include <ATen/ops/batch_norm.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <limits>
#include <stdexcept>

namespace pianola::trace::write_set_test {
namespace {

using pianola::testing::same;

class Writes : public pianola::testing::DeviceTest {
 protected:
  static void run(WriteSet& set, const std::function<void()>& step) {
    set.begin_run();
    const OpStream stream({&set});
    step();
  }
};
PIANOLA_ON_EVERY_DEVICE(Writes);

TEST_P(Writes, AreUndoneToTheByte) {
  const at::Tensor x = randn({5});
  x[1].fill_(std::numeric_limits<double>::quiet_NaN());
  const at::Tensor before = x.view(at::kInt).clone();
  WriteSet set;
  run(set, [&] {
    x.add_(1);
    x.mul_(3);  // a second write must not be what is kept
  });
  ASSERT_FALSE(same(x.view(at::kInt), before));
  set.restore();
  EXPECT_TRUE(same(x.view(at::kInt), before));
}

TEST_P(Writes, OverSeveralRunsAreUndoneToTheFirst) {
  const at::Tensor x = randn({5}), before = x.clone();
  WriteSet set;
  for (int i = 0; i < 3; ++i) run(set, [&] { x.add_(1); });
  set.restore();
  EXPECT_TRUE(same(x, before));
}

TEST_P(Writes, ThroughSeveralViewsAreUndoneOnceForTheStorage) {
  const at::Tensor x = randn({4, 6}), before = x.clone();
  WriteSet set;
  run(set, [&] {
    x.t()[1].fill_(7);
    x.slice(0, 2).zero_();
  });
  EXPECT_EQ(set.bytes(), x.nbytes());
  set.restore();
  EXPECT_TRUE(same(x, before));
}

TEST_P(Writes, OfListsAndOfResultsGivenByTheCallerAreUndone) {
  at::Tensor out = randn({2, 2}, 3);
  const at::Tensor x = randn({2, 2}), before = out.clone();
  WriteSet set;
  run(set, [&] { at::mm_out(out, x, x); });
  set.restore();
  EXPECT_TRUE(same(out, before));
}

TEST_P(Writes, ToMemoryThatTheStepMadeCostNothing) {
  const at::Tensor x = randn({4});
  WriteSet set;
  run(set, [&] { (x + 1).mul_(2).add_(x); });
  EXPECT_EQ(set.bytes(), 0U);
  EXPECT_FALSE(set.wrote_lazy_state());
}

TEST_P(Writes, OfRunningStatisticsAreUndoneAlthoughNoSchemaTells) {
  const at::Tensor x = randn({4, 3, 2, 2}), w = at::ones({3}, device()), mean = at::zeros({3}, device()),
                   var = at::ones({3}, device());
  WriteSet set;
  run(set, [&] { at::batch_norm(x, w, w, mean, var, true, 0.1, 1e-5, true); });
  ASSERT_FALSE(same(mean, at::zeros({3}, device())));
  set.restore();
  EXPECT_TRUE(same(mean, at::zeros({3}, device())));
  EXPECT_TRUE(same(var, at::ones({3}, device())));
}

TEST_P(Writes, OfAStepThatThrowsAreUndone) {
  const at::Tensor x = randn({4}), before = x.clone();
  WriteSet set;
  EXPECT_THROW(run(set,
                   [&] {
                     x.zero_();
                     throw std::runtime_error("user");
                   }),
               std::runtime_error);
  set.restore();
  EXPECT_TRUE(same(x, before));
}

TEST_P(Writes, AreKeptWhereTheSetIsToldNotToSave) {
  const at::Tensor x = randn({4}), before = x.clone();
  WriteSet set;
  set.save_writes(false);
  run(set, [&] { x.add_(1); });
  set.restore();
  EXPECT_TRUE(same(x, before + 1));
}

TEST_P(Writes, ThatNoRunShowedAreUndoneWhereTheStorageWasSavedBefore) {
  const at::Tensor x = randn({5}), y = randn({5}, 2), before_x = x.clone(), before_y = y.clone();
  WriteSet set;
  run(set, [&] { x.add_(1); });
  for (const at::Tensor& tensor : {x, y}) set.save(tensor.storage());  // of x there is an older copy
  x.add_(1);
  y.zero_();
  set.restore();
  EXPECT_TRUE(same(x, before_x));
  EXPECT_TRUE(same(y, before_y));
}

TEST_P(Writes, AfterARestoreAreNoConcernOfTheSet) {
  const at::Tensor x = randn({4}), before = x.clone();
  WriteSet set;
  run(set, [&] { x.add_(1); });
  set.restore();
  x.zero_();
  set.restore();
  EXPECT_TRUE(same(x, at::zeros({4}, device())));
}

TEST_P(Writes, ToStateThatAnEarlierRunMadeAreReported) {
  const at::Tensor x = randn({4});
  at::Tensor state;
  WriteSet set;
  const auto step = [&] { state.defined() ? state.add_(x) : state = x * 1; };
  run(set, step);
  EXPECT_FALSE(set.wrote_lazy_state());
  run(set, step);
  EXPECT_TRUE(set.wrote_lazy_state());
}

// The user's own buffer, seen through a tensor that no operation made and whose storage lies where one of the step's lay.
class WritesInPlaceOfOthers : public Writes {
 protected:
  void SetUp() override {
    Writes::SetUp();
    if (!IsSkipped() && !HasFailure() && !pianola::testing::identities_are_reused()) {
      GTEST_SKIP() << "no storage takes a freed one's place";
    }
  }
  static at::Tensor tensor_on(const at::Tensor& buffer, const void* freed) {
    return pianola::testing::made_in_place_of(
        freed, [&] { return at::from_blob(buffer.data_ptr(), buffer.sizes(), buffer.options()); });
  }
};
PIANOLA_ON_EVERY_DEVICE(WritesInPlaceOfOthers);

TEST_P(WritesInPlaceOfOthers, AreUndoneThoughTheStepMadeTheOther) {
  const at::Tensor buffer = randn({4}), before = buffer.clone();
  WriteSet set;
  run(set, [&] {
    const void* const freed = storage_of(at::neg(buffer));
    tensor_on(buffer, freed).add_(1);
  });
  ASSERT_FALSE(same(buffer, before));
  set.restore();
  EXPECT_TRUE(same(buffer, before));
}

TEST_P(WritesInPlaceOfOthers, AreUndoneThoughAnEarlierRunMadeTheOther) {
  const at::Tensor buffer = randn({4}), before = buffer.clone();
  const void* freed = nullptr;
  WriteSet set;
  run(set, [&] { freed = storage_of(at::neg(buffer)); });
  const at::Tensor x = tensor_on(buffer, freed);
  run(set, [&] { x.add_(1); });
  ASSERT_FALSE(same(buffer, before));
  EXPECT_FALSE(set.wrote_lazy_state());
  set.restore();
  EXPECT_TRUE(same(buffer, before));
}

class Gradients : public Writes {
 protected:
  void SetUp() override {
    Writes::SetUp();
    if (!IsSkipped()) w = randn({3}).requires_grad_();
  }
  void backward() const { torch::autograd::backward({(w * w).sum()}, {}); }

  at::Tensor w;
  WriteSet set;
};
PIANOLA_ON_EVERY_DEVICE(Gradients);

TEST_P(Gradients, ThatWereUndefinedAreUndefinedAgain) {
  run(set, [&] { backward(); });
  ASSERT_TRUE(w.grad().defined());
  set.restore();
  EXPECT_FALSE(w.grad().defined());
}

TEST_P(Gradients, ThatWereUndefinedAreSoForEachRun) {
  std::vector<bool> defined;
  for (int i = 0; i < 2; ++i) {
    run(set, [&] {
      defined.push_back(w.grad().defined());
      backward();
    });
  }
  EXPECT_THAT(defined, ::testing::ElementsAre(false, false));
}

TEST_P(Gradients, ThatWereUndefinedStayAsZerosWhereTheyAreToBeKept) {
  run(set, [&] { backward(); });
  const at::Tensor made = w.grad();
  set.restore_keeping_gradients();
  EXPECT_TRUE(w.grad().is_same(made));
  EXPECT_TRUE(same(w.grad(), at::zeros({3}, device())));
}

TEST_P(Gradients, ThatAccumulateAreUndoneInPlace) {
  for (const bool keep : {false, true}) {
    const at::Tensor grad = randn({3}, 5), before = grad.clone();
    w.mutable_grad() = grad;
    run(set, [&] { backward(); });
    ASSERT_FALSE(same(grad, before));
    keep ? set.restore_keeping_gradients() : set.restore();
    EXPECT_TRUE(w.grad().is_same(grad));
    EXPECT_TRUE(same(grad, before));
  }
}

TEST_P(Gradients, AreLeftToOtherThreadsByAStepThatMakesNone) {
  set.differentiates(false);
  const auto compute = [&] { (void)(w * w); };
  run(set, compute);
  const at::Tensor of_another_thread = randn({3}, 5);
  w.mutable_grad() = of_another_thread;
  run(set, compute);
  set.restore();
  EXPECT_TRUE(w.grad().is_same(of_another_thread));
}

TEST_P(Gradients, ThatTheStepReplacesComeBack) {
  const at::Tensor grad = randn({3}, 5), before = grad.clone();
  w.mutable_grad() = grad;
  run(set, [&] {
    const at::Tensor loss = (w * w).sum();
    w.mutable_grad().reset();
    torch::autograd::backward({loss}, {});
  });
  ASSERT_FALSE(w.grad().is_same(grad));
  set.restore();
  EXPECT_TRUE(w.grad().is_same(grad));
  EXPECT_TRUE(same(grad, before));
}

TEST_P(Gradients, ThatTheStepReplacesGetTheOldValuesWhereTheyAreToBeKept) {
  const at::Tensor grad = randn({3}, 5), before = grad.clone();
  w.mutable_grad() = grad;
  run(set, [&] {
    const at::Tensor loss = (w * w).sum();
    w.mutable_grad().reset();
    torch::autograd::backward({loss}, {});
  });
  const at::Tensor now = w.grad();
  set.restore_keeping_gradients();
  EXPECT_TRUE(w.grad().is_same(now));
  EXPECT_TRUE(same(w.grad(), before));
}

TEST_P(Gradients, InABufferFromOutsideLeaveItsValuesAlone) {
  const at::Tensor buffer = randn({2, 3}, 5), before = buffer.clone();
  for (const bool replaces : {false, true}) {
    if (replaces) w.mutable_grad() = randn({3}, 6);
    for (int i = 0; i < 2; ++i) {
      run(set, [&] {
        w.mutable_grad() = buffer[1];
        backward();
      });
    }
    ASSERT_FALSE(same(buffer, before));
    set.restore_keeping_gradients();
    EXPECT_TRUE(w.grad().is_alias_of(buffer));
    EXPECT_TRUE(same(buffer, before));
    w.mutable_grad().reset();
  }
}

TEST_P(Gradients, ThatAreAnotherParametersToo) {
  const at::Tensor other = randn({3}).requires_grad_(), grad = randn({3}, 5), before = grad.clone();
  other.mutable_grad() = grad;
  run(set, [&] {
    torch::autograd::backward({(w * other.detach()).sum() + other.sum().detach()}, {});
    w.mutable_grad() = other.grad();
  });
  set.restore_keeping_gradients();
  EXPECT_TRUE(w.grad().is_same(grad));
  EXPECT_TRUE(same(grad, before));
}

}  // namespace
}  // namespace pianola::trace::write_set_test
