#include <pianola/parallel/step_units.hpp>

#include <pianola/parallel/testing/graph_units_test.hpp>

#include <ATen/ops/mm.h>
#include <ATen/ops/relu.h>
#include <torch/library.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace pianola::parallel::custom_units_test {
namespace {

using testing::address_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;
using Call = testing::FakeStep::Call;

class CustomUnits : public testing::GraphUnitsTest {
 protected:
  static constexpr std::uintptr_t kFarAway = 0x100000000000;  // from where the CPU has its tensors

  CustomUnits() { define_operators(); }

  static at::Tensor copied(const at::Tensor& t) { return t.clone(); }
  static at::Tensor call(const char* name, const at::Tensor& argument) {
    c10::Stack stack{argument};
    c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(stack);
    return stack[0].toTensor();
  }
  /// Of pianola_units::written on x, behind an operation on y; the action gives the former its nodes.
  Unit unit_of_written(testing::FakeStep::Action action) {
    step.on("pianola_units::written", std::move(action));
    std::vector<Unit> all = units([&] {
      at::relu(y);
      call("pianola_units::written", x);
    });
    EXPECT_THAT(all, SizeIs(2));
    return all.at(1);
  }

 private:
  // Once: what was recorded of an operator outlives it.
  static void define_operators() {
    static const torch::Library library = [] {
      torch::Library made(torch::Library::DEF, "pianola_units", std::nullopt, __FILE__, __LINE__);
      made.def("written(Tensor x) -> Tensor", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &copied));
      made.def("inferred", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &copied));
      return made;
    }();
    static const torch::Library package = [] {  // as the Python package has it
      torch::Library made(torch::Library::FRAGMENT, "pianola", std::nullopt, __FILE__, __LINE__);
      made.def("compiled_kernel(Tensor x) -> Tensor",
               torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &copied));
      return made;
    }();
  }
};

TEST_F(CustomUnits, WithoutAWrittenSchemaAreBarriers) {
  const auto all = units([&] { call("pianola_units::inferred", x); });
  EXPECT_EQ(all.at(0).barrier, "operator pianola_units::inferred has no written schema");
}

TEST_F(CustomUnits, WithAWrittenSchemaAreBelieved) {
  hidden.workspaces = {{kFarAway, kFarAway + 0x1000}};
  const ByteSpan scratch{2 * kFarAway, 2 * kFarAway + 0x100};
  const Unit unit = unit_of_written([&](const Call& call) {
    step.allocate(scratch);
    step.kernel({address_of(x), address_of(call.outputs[0]), scratch.begin + 64, kFarAway, 12345, 1ULL << 60U});
  });
  EXPECT_EQ(unit.barrier, "") << "numbers say nothing";
  EXPECT_EQ(use(unit, x), "r");
  EXPECT_THAT(of(unit, Memory::workspace), SizeIs(1)) << "only cuBLAS's";
}

// A library may have a buffer of its own that each call of it uses.
TEST_F(CustomUnits, ThatPointIntoMemoryOfTheirOwnAreOrderedAmongEachOther) {
  step.on("pianola_units::written", [&](const Call& call) {
    step.kernel({address_of(call.inputs[0]), address_of(call.outputs[0]), address_of(y) + (1U << 30U)});
  });
  const auto all = units([&] {
    at::relu(y);
    call("pianola_units::written", x);
    call("pianola_units::written", x);
  });
  ASSERT_THAT(all, SizeIs(3));
  EXPECT_THAT(of(all[0], Memory::workspace), IsEmpty());
  const auto first = of(all[1], Memory::workspace), second = of(all[2], Memory::workspace);
  ASSERT_THAT(first, SizeIs(1));
  ASSERT_THAT(second, SizeIs(1));
  EXPECT_TRUE(first[0].write && second[0].write && first[0].bytes == second[0].bytes);
  EXPECT_EQ(all[1].barrier, "");
  EXPECT_TRUE(all[1].writes_unknown);
}

// Some memory of CUDA's lies at addresses as low as numbers are.
TEST_F(CustomUnits, ThatTorchCompileMadeHaveNoMemoryOfTheirOwn) {
  step.on("pianola::compiled_kernel", [&](const Call& call) {
    step.kernel({address_of(call.inputs[0]), address_of(call.outputs[0]), address_of(y) + (1U << 30U)});
  });
  const auto all = units([&] {
    at::relu(y);
    call("pianola::compiled_kernel", x);
  });
  ASSERT_THAT(all, SizeIs(2));
  EXPECT_THAT(of(all[1], Memory::workspace), IsEmpty());
  EXPECT_EQ(all[1].barrier, "");
  EXPECT_FALSE(all[1].writes_unknown);
  EXPECT_EQ(use(all[1], x), "r");
}

TEST_F(CustomUnits, ThatTorchCompileMadeAreBarriersWhereTheyPointIntoOthersMemory) {
  step.on("pianola::compiled_kernel", [&](const Call& call) {
    step.kernel({address_of(call.inputs[0]), address_of(call.outputs[0]), address_of(y)}, "sly");
  });
  const auto all = units([&] {
    at::relu(y);
    call("pianola::compiled_kernel", x);
  });
  EXPECT_THAT(all.at(1).barrier, StartsWith("kernel sly of pianola::compiled_kernel points to 0x"));
  EXPECT_TRUE(all[1].writes_unknown);
}

TEST_F(CustomUnits, ThatPointIntoOthersMemoryAreBarriers) {
  const Unit unit = unit_of_written([&](const Call& call) {
    step.kernel({address_of(x), address_of(call.outputs[0]), address_of(y) + 8}, "sly");
  });
  EXPECT_THAT(unit.barrier, StartsWith("kernel sly of pianola_units::written points to 0x"));
  EXPECT_THAT(unit.barrier, HasSubstr(", which is in none of its arguments"));
}

TEST_F(CustomUnits, ThatPointIntoScratchOfOthersAreBarriers) {
  step.on("aten::relu", [&](const Call&) {
    step.allocate({0x7000, 0x7100});
    step.kernel({});
  });
  EXPECT_THAT(unit_of_written([&](const Call&) { step.kernel({0x7080}); }).barrier, HasSubstr("points to 0x7080"));
}

TEST_F(CustomUnits, ThatFillBeyondTheirArgumentsAreBarriers) {
  step.on("aten::relu", [&](const Call&) {
    step.allocate({0x7000, 0x7100});
    step.kernel({});
  });
  const Unit unit = unit_of_written([&](const Call&) {
    step.allocate({0x6000, 0x6800});
    step.fill({0x6000, 0x7010});
  });
  EXPECT_THAT(unit.barrier, HasSubstr("memset of 4112 bytes of pianola_units::written points to 0x6000"));
}

TEST_F(CustomUnits, WhoseKernelsCannotBeReadAreBarriers) {
  EXPECT_EQ(unit_of_written([&](const Call&) { step.unreadable_kernel(); }).barrier,
            "the arguments of kernel secret of pianola_units::written cannot be read");
}

TEST_F(CustomUnits, OfTorchsOwnOperatorsAreBelievedWhateverTheirStackHeld) {
  const auto all = units([&] {
    at::relu(y);
    step.on("aten::mm", [&](const Call&) { step.kernel({address_of(x), address_of(y)}); });
    at::mm(x, x);
  });
  EXPECT_EQ(all[1].barrier, "");
  EXPECT_EQ(use(all[1], y), "");
}

}  // namespace
}  // namespace pianola::parallel::custom_units_test
