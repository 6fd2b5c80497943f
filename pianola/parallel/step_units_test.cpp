#include <pianola/parallel/step_units.hpp>

#include <pianola/parallel/cost_model.hpp>
#include <pianola/trace/tensors_of.hpp>
#include <pianola/trace/testing/trace_of.hpp>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/add.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace pianola::parallel::step_units_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::trace_of;

ByteSpan bytes_of(const at::Tensor& tensor) {
  const auto begin = reinterpret_cast<std::uintptr_t>(trace::address_of(tensor));
  return {begin, begin + trace::span_bytes_of(tensor)};
}

std::vector<Unit> units(const std::function<void()>& step) {
  StepUnits result = units_of(trace_of(step));
  EXPECT_EQ(result.refusal, "");
  return std::move(result.units);
}

std::vector<std::string> names(const std::vector<Unit>& units) {
  std::vector<std::string> all;
  for (const Unit& unit : units) all.push_back(unit.name);
  return all;
}

/// The access to exactly these bytes; one without bytes where there is none.
Access access_to(const Unit& unit, ByteSpan bytes) {
  for (const Access& access : unit.accesses) {
    if (access.bytes == bytes) return access;
  }
  return {};
}
Access access_to(const Unit& unit, const at::Tensor& tensor) { return access_to(unit, bytes_of(tensor)); }

TEST(TapeUnits, AreTheOperationsThatAReplayRuns) {
  const at::Tensor x = at::ones({2, 4});
  const auto all = units([&] {
    const at::Tensor room = at::empty({2, 4});
    at::relu(x.t());
    at::add(x, x);
  });
  EXPECT_THAT(names(all), ElementsAre("aten::relu", "aten::add.Tensor")) << "no view, no allocation";
  EXPECT_EQ(all[0].op, 2U);
  EXPECT_THAT(all[0].nodes, ElementsAre(2U)) << "the node is the operation's position in the trace";
  EXPECT_EQ(all[0].barrier, "");
}

TEST(TapeUnits, StandInTheOrderInWhichAReplayRunsThem) {
  at::Tensor x = at::ones({2, 4}).requires_grad_() * 2;
  const at::Tensor factor = at::ones({2, 4}).requires_grad_();
  const auto all = units([&] { x.mul_(factor); });
  EXPECT_THAT(names(all), ElementsAre("aten::clone", "aten::mul_.Tensor")) << "the clone of what mul_ overwrites";
  EXPECT_EQ(all[0].op, 1U);
  EXPECT_FALSE(access_to(all[0], x).write);
  EXPECT_TRUE(access_to(all[1], x).write);
}

TEST(TapeUnits, ReadArgumentsAndWriteResults) {
  const at::Tensor a = at::ones({2, 3}), b = at::ones({3, 4});
  at::Tensor c, d;
  const auto all = units([&] {
    c = at::mm(a, b);
    d = at::relu(c);
  });
  ASSERT_THAT(all, SizeIs(2));
  EXPECT_THAT(all[0].accesses, SizeIs(3));
  EXPECT_FALSE(access_to(all[0], a).write);
  EXPECT_EQ(access_to(all[0], a).memory, Memory::outside);
  EXPECT_EQ(access_to(all[0], a).owner, a.storage().unsafeGetStorageImpl());
  EXPECT_TRUE(access_to(all[0], c).write);
  EXPECT_EQ(access_to(all[0], c).memory, Memory::made);
  EXPECT_FALSE(access_to(all[1], c).write);
  EXPECT_EQ(access_to(all[1], c).memory, Memory::made);
  EXPECT_EQ(access_to(all[1], c).owner, access_to(all[0], c).owner);
}

TEST(TapeUnits, WriteWhatTheyChangeInPlace) {
  const at::Tensor x = at::ones({4}), y = at::ones({4});
  const auto all = units([&] { x.add_(y); });
  ASSERT_THAT(all[0].accesses, SizeIs(2)) << "the result is the argument";
  EXPECT_TRUE(access_to(all[0], x).write);
  EXPECT_FALSE(access_to(all[0], y).write);
}

TEST(TapeUnits, WriteEachTensorOfAList) {
  const std::vector<at::Tensor> x = {at::ones({4}), at::ones({5})}, y = {at::ones({4}), at::ones({5})};
  const auto all = units([&] { at::_foreach_add_(x, y); });
  for (const at::Tensor& tensor : x) EXPECT_TRUE(access_to(all[0], tensor).write);
  for (const at::Tensor& tensor : y) EXPECT_FALSE(access_to(all[0], tensor).write);
  EXPECT_THAT(all[0].accesses, SizeIs(4));
}

TEST(TapeUnits, TouchTheBytesOfAViewAlone) {
  const at::Tensor x = at::ones({4, 6});
  const auto all = units([&] { x.select(0, 1).add_(x.select(0, 2)); });
  ASSERT_THAT(all, SizeIs(1));
  EXPECT_TRUE(access_to(all[0], x.select(0, 1)).write);
  EXPECT_FALSE(access_to(all[0], x.select(0, 2)).write);
  EXPECT_FALSE(access_to(all[0], x.select(0, 1)).bytes.overlaps(access_to(all[0], x.select(0, 2)).bytes));
}

TEST(TapeUnits, WriteAViewOfWhatTheyOnlyRead) {
  const at::Tensor x = at::ones({4, 4}), y = at::ones({4, 4}), row = at::ones({4});
  const std::vector<at::Tensor> targets = {x.select(0, 1), y}, sources = {row, x};
  const auto all = units([&] { at::_foreach_add_(targets, sources); });
  ASSERT_THAT(all, SizeIs(1));
  EXPECT_FALSE(access_to(all[0], x).write);
  EXPECT_TRUE(access_to(all[0], targets[0]).write);
}

TEST(TapeUnits, TouchAnExpandedTensorOnce) {
  const at::Tensor row = at::ones({1, 8}), x = at::ones({16, 8});
  const auto all = units([&] { at::mul(row.expand({16, 8}), x); });
  EXPECT_EQ(access_to(all[0], row).bytes.size(), 8 * sizeof(float)) << "stride 0 reaches no further";
}

TEST(TapeUnits, DoNotTouchTensorsWithoutElements) {
  const at::Tensor none = at::ones({0, 4});
  const auto all = units([&] { at::relu(none); });
  ASSERT_THAT(all, SizeIs(1));
  EXPECT_THAT(all[0].accesses, IsEmpty());
}

TEST(TapeUnits, WriteAResultThatTheyMadeRoomFor) {
  const at::Tensor x = at::ones({4, 4});
  at::Tensor out = at::empty({0});
  const auto all = units([&] { at::mm_out(out, x, x); });
  ASSERT_EQ(out.numel(), 16);
  EXPECT_TRUE(access_to(all[0], out).write);
}

TEST(TapeUnits, WriteRunningStatisticsInTraining) {
  const at::Tensor x = at::ones({4, 3, 2, 2}), w = at::ones({3}), mean = at::zeros({3}), var = at::ones({3});
  for (const bool training : {true, false}) {
    const auto all = units([&] { at::batch_norm(x, w, w, mean, var, training, 0.1, 1e-5, false); });
    ASSERT_THAT(names(all), ElementsAre("aten::native_batch_norm"));
    EXPECT_EQ(access_to(all[0], mean).write, training);
    EXPECT_EQ(access_to(all[0], var).write, training);
    EXPECT_FALSE(access_to(all[0], w).write);
  }
}

TEST(TapeUnits, TellStoragesApartThatHaveOneAddressInTurn) {
  const at::Tensor x = at::ones({64});
  const auto all = units([&] {
    for (int i = 0; i < 8; ++i) at::relu(at::mul(x, x));
  });
  ASSERT_THAT(all, SizeIs(16));
  std::set<const void*> owners;
  for (const Unit& unit : all) {
    for (const Access& access : unit.accesses) {
      if (access.write) owners.insert(access.owner);
    }
  }
  EXPECT_THAT(owners, SizeIs(16)) << "16 results, however few addresses";
  for (std::size_t i = 0; i < all.size(); i += 2) {
    const auto written = [](const Access& access) { return access.write; };
    const auto made = std::find_if(all[i].accesses.begin(), all[i].accesses.end(), written);
    const Access read = access_to(all[i + 1], made->bytes);
    EXPECT_EQ(read.owner, made->owner) << "relu reads what mul made";
  }
}

TEST(TapeUnits, ThatDrawNumbersAreOrderedByTheGenerator) {
  const at::Tensor x = at::ones({8});
  const auto all = units([&] {
    at::dropout(x, 0.5, true);
    x.clone().normal_();
  });
  std::vector<Access> generators;
  for (const Unit& unit : all) {
    for (const Access& access : unit.accesses) {
      if (access.memory == Memory::generator) generators.push_back(access);
    }
  }
  ASSERT_THAT(generators, SizeIs(2));
  EXPECT_TRUE(generators[0].write && generators[1].write);
  EXPECT_EQ(generators[0].bytes, generators[1].bytes);
}

TEST(TapeUnits, ThatReadOnTheHostAreBarriers) {
  const at::Tensor x = at::ones({3});
  const auto all = units([&] { at::nonzero(x); });
  EXPECT_EQ(all[0].barrier, "aten::nonzero reads a value on the host");
}

TEST(TapeUnits, ThatThrewAreBarriers) {
  const at::Tensor x = at::ones({2, 2}), wrong = at::ones({3, 3});
  const auto all = units([&] { EXPECT_THROW(at::mm(x, wrong), c10::Error); });
  EXPECT_EQ(all[0].barrier, "aten::mm returned nothing");
}

TEST(TapeUnits, WithATensorWithoutMemoryOfItsOwnAreBarriers) {
  const at::Tensor sparse = at::ones({3, 3}).to_sparse();
  const auto all = units([&] { at::mul(sparse, sparse); });
  EXPECT_THAT(all[0].barrier, HasSubstr("aten::mul.Tensor has a tensor without memory of its own"));
}

at::Tensor twice(const at::Tensor& x) { return at::add(x, x); }

TEST(TapeUnits, OfOperatorsWithoutAWrittenSchemaAreBarriers) {
  static const torch::Library library = [] {  // once: what was recorded of an operator outlives it
    torch::Library made(torch::Library::DEF, "pianola_tape", std::nullopt, __FILE__, __LINE__);
    made.def("written(Tensor x) -> Tensor", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &twice));
    made.def("inferred", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &twice));
    return made;
  }();
  const at::Tensor x = at::ones({4});
  const auto call = [&](const char* name) {
    return units([&] {
      c10::Stack stack{x};
      c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(stack);
    });
  };
  const auto written = call("pianola_tape::written"), inferred = call("pianola_tape::inferred");
  ASSERT_THAT(names(written), ElementsAre("pianola_tape::written"));
  EXPECT_EQ(written[0].barrier, "");
  ASSERT_THAT(names(inferred), ElementsAre("pianola_tape::inferred"));
  EXPECT_EQ(inferred[0].barrier, "operator pianola_tape::inferred has no written schema");
}

TEST(CostModel, IsTimePerNodeAndTimePerByte) {
  EXPECT_DOUBLE_EQ(cost_us(2, {}), 3.0);
  const std::vector<Access> accesses = {{.bytes = {0, 1000000}}, {.bytes = {5000000, 6500000}}};
  EXPECT_DOUBLE_EQ(cost_us(1, accesses), 1.5 + 1.0);
}

TEST(CostModel, CountsEachByteOnceAndNoHiddenMemory) {
  const std::vector<Access> accesses = {{.bytes = {100, 200}},
                                        {.bytes = {100, 200}, .write = true},
                                        {.bytes = {150, 250}},
                                        {.bytes = {1000, 9000}, .memory = Memory::workspace},
                                        {.bytes = {9000, 9008}, .memory = Memory::generator}};
  EXPECT_EQ(touched_bytes(accesses), 150U);
}

TEST(TapeUnits, OfAnEmptyStepAreNone) {
  EXPECT_THAT(units([] {}), IsEmpty());
}

}  // namespace
}  // namespace pianola::parallel::step_units_test
