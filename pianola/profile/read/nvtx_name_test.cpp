#include <pianola/profile/read/nvtx_name.hpp>

#include <gtest/gtest.h>

namespace pianola::profiling::nvtx_name_test {
namespace {

using Kind = HostRange::Kind;

struct Name {
  const char* test;
  std::string_view text;
  std::string_view name;
  Kind kind;
};

class NvtxNameTest : public ::testing::TestWithParam<Name> {};

TEST_P(NvtxNameTest, IsToldFromItsText) {
  const NvtxName found = parse_nvtx_name(GetParam().text);
  EXPECT_EQ(found.name, GetParam().name);
  EXPECT_EQ(found.kind, GetParam().kind);
}

INSTANTIATE_TEST_SUITE_P(
    Names, NvtxNameTest,
    ::testing::Values(
        Name{"OfAnOperation", "aten::mm", "aten::mm", Kind::operation},
        Name{"OfAnOperationWithNumbers", "aten::mm, seq = 3, op_id = 12", "aten::mm", Kind::operation},
        Name{"OfAnOperationWithShapes", "aten::mm, op_id = 12, sizes = [[2, 3], [3, 4]], input_op_ids = [(1,0)]",
             "aten::mm", Kind::operation},
        Name{"OfAnotherLibrarysOperation", "vision::nms, op_id = 7", "vision::nms", Kind::operation},
        Name{"OfANodeOfAutograd", "AddmmBackward0, seq = 3, op_id = 9", "AddmmBackward0", Kind::operation},
        Name{"OfANodeAtWork", "autograd::engine::evaluate_function: AddmmBackward0, op_id = 8",
             "autograd::engine::evaluate_function: AddmmBackward0", Kind::backward},
        Name{"OfAModule", "nn.Module: Linear_0", "nn.Module: Linear_0", Kind::module},
        Name{"OfRecordFunction", "forward, op_id = 5", "forward", Kind::annotation},
        Name{"OfThePrograms", "train step 12", "train step 12", Kind::annotation},
        Name{"OfALibrarysFunction", "cub::DeviceReduce::Sum", "cub::DeviceReduce::Sum", Kind::annotation},
        Name{"OfNothing", "", "", Kind::annotation}),
    [](const auto& name) { return std::string(name.param.test); });

}  // namespace
}  // namespace pianola::profiling::nvtx_name_test
