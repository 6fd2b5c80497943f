#include <pianola/trace/counted_index.hpp>

#include <pianola/trace/testing/trace_of.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/index_copy.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/zeros.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pianola::trace::counted_index_test {
namespace {

using ::testing::HasSubstr;
using testing::trace_of;

class CountedIndex : public ::testing::Test {
 protected:
  std::string of(const std::function<void()>& step) { return index_that_is_counted(trace_of(step)); }

  at::Tensor cache = at::zeros({8, 4}), row = at::ones({1, 4});
  at::Tensor position = at::zeros({1}, at::kLong);
};

TEST_F(CountedIndex, IsThePositionInACacheThatTheStepMovesOn) {
  EXPECT_THAT(of([&] {
                cache.index_copy_(0, position, row);
                position.add_(1);
              }),
              HasSubstr("aten::index_copy_"));
}

TEST_F(CountedIndex, IsFollowedThroughWhatIsComputedOfIt) {
  EXPECT_THAT(of([&] {
                position.add_(1);
                (void)cache.index_select(0, (position * 2 + 1).remainder(5));
              }),
              HasSubstr("aten::index_select"));
}

TEST_F(CountedIndex, MayBeCountedAsAFraction) {
  at::Tensor steps = at::zeros({}, at::kFloat);
  EXPECT_THAT(of([&] {
                steps.add_(1);
                (void)cache.index_select(0, steps.to(at::kLong));
              }),
              HasSubstr("aten::index_select"));
}

TEST_F(CountedIndex, IsNoneWhereTheCountIsNotUsedSo) {
  EXPECT_EQ(of([&] {
              position.add_(1);
              row.mul_(position.to(at::kFloat));
              (void)cache.index_select(0, at::arange(3));
            }),
            "");
}

TEST_F(CountedIndex, IsNoneWhereTheIndexComesFromOutsideAndStays) {
  EXPECT_EQ(of([&] { cache.index_copy_(0, position, row); }), "");
  EXPECT_EQ(of([&] {
              at::Tensor own = at::zeros({1}, at::kLong);
              own.add_(1);
              cache.index_copy_(0, own, row);
            }),
            "");
}

}  // namespace
}  // namespace pianola::trace::counted_index_test
