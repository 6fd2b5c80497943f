#include <pianola/graph/moved_view.hpp>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <optional>

namespace pianola::graph::moved_view_test {
namespace {

const trace::OpInfo& operator_of(const char* name, const char* overload) {
  return trace::info_of(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
}

// What the call itself says, where it has a result of that shape.
std::optional<std::int64_t> called(const trace::OpInfo& op, torch::jit::Stack stack, const at::Tensor& like) {
  try {
    op.handle.callBoxed(stack);
  } catch (const c10::Error&) {
    return std::nullopt;
  }
  const at::Tensor result = stack.front().toTensor();
  return result.sizes() == like.sizes() && result.strides() == like.strides() ? std::optional(result.storage_offset())
                                                                              : std::nullopt;
}

TEST(MovedViewTest, ARowLiesWhereTheCallPutsIt) {
  const trace::OpInfo& select = operator_of("aten::select", "int");
  const at::Tensor all = at::zeros({3, 4, 5}).transpose(0, 1).slice(0, 1);
  for (const std::int64_t dim : {0, 1, 2, -1, -3, 3, -4}) {
    for (std::int64_t index = -6; index <= 6; ++index) {
      const at::Tensor like = all.select(dim < -3 || dim > 2 ? 0 : dim, 0);
      EXPECT_EQ(offset_of_view(select, {all, dim, index}, like), called(select, {all, dim, index}, like))
          << dim << ", " << index;
    }
  }
}

TEST(MovedViewTest, ASliceLiesWhereTheCallPutsIt) {
  const trace::OpInfo& slice = operator_of("aten::slice", "Tensor");
  constexpr std::int64_t kEnd = std::numeric_limits<std::int64_t>::max();
  const at::Tensor all = at::zeros({4, 6, 2}).transpose(0, 1);
  for (const std::int64_t dim : {0, 1, -1}) {
    for (const std::int64_t length : {0, 1, 2}) {
      const at::Tensor like = all.slice(dim, 0, length);
      for (std::int64_t start = -8; start <= 8; ++start) {
        for (const std::int64_t end : {start + length, start, std::int64_t{2}, std::int64_t{-1}, kEnd}) {
          EXPECT_EQ(offset_of_view(slice, {all, dim, start, end, 1}, like),
                    called(slice, {all, dim, start, end, 1}, like))
              << dim << ", " << length << ", " << start << ", " << end;
        }
      }
    }
  }
}

TEST(MovedViewTest, OtherCallsAreLeftToThemselves) {
  const trace::OpInfo& slice = operator_of("aten::slice", "Tensor");
  const trace::OpInfo& unfold = operator_of("aten::unfold", "");
  const at::Tensor all = at::zeros({6});
  EXPECT_FALSE(offset_of_view(slice, {all, 0, 1, 5, 2}, all.slice(0, 1, 5, 2)));
  EXPECT_FALSE(offset_of_view(slice, {all, 0, c10::IValue(), 3, 1}, all.slice(0, 0, 3)));
  EXPECT_FALSE(offset_of_view(unfold, {all, 0, 2, 2}, all.unfold(0, 2, 2)));
}

}  // namespace
}  // namespace pianola::graph::moved_view_test
