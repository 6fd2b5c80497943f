#include <pianola/trace/resized_storage.hpp>

#include <pianola/trace/op_stream.hpp>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace pianola::trace {
namespace {

struct Names final : OpObserver {
  void on_op_begin(const OpSpan& op) override { all.push_back(op.info->name); }
  std::vector<std::string> all;
};

TEST(ResizedStorage, IsResizedByAnOperatorWhereAStreamWatches) {
  const at::Tensor tensor = at::ones({4}, at::kFloat);
  Names names;
  {
    const OpStream stream({&names});
    EXPECT_TRUE(resize_by_operator(tensor.storage(), 0));
    EXPECT_EQ(tensor.storage().nbytes(), 0U);
    EXPECT_TRUE(resize_by_operator(tensor.storage(), 16));
  }
  EXPECT_EQ(tensor.storage().nbytes(), 16U);
  EXPECT_EQ(names.all, std::vector<std::string>(2, "inductor::resize_storage_bytes_"));
}

TEST(ResizedStorage, IsLeftToTheCallerWhereNoneWatches) {
  const at::Tensor tensor = at::ones({4}, at::kFloat);
  EXPECT_FALSE(resize_by_operator(tensor.storage(), 0));
  EXPECT_EQ(tensor.storage().nbytes(), 16U);
}

}  // namespace
}  // namespace pianola::trace
