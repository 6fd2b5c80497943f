#include <pianola/callable/structure.hpp>

#include <pianola/callable/testing/twins.hpp>

#include <ATen/core/jit_type.h>

#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace pianola::callable::structure_test {
namespace {

using c10::IValue;
using ::testing::Eq;
using ::testing::Optional;

class StructureTest : public pianola::testing::CallableTest {
 protected:
  static at::Tensor tensor(std::uint64_t seed) { return randn({2}, seed); }

  static IValue tuple(std::vector<IValue> entries) { return c10::ivalue::Tuple::create(std::move(entries)); }
  static IValue list(const std::vector<at::Tensor>& entries) { return entries; }
  static IValue map(const std::vector<std::pair<std::string, at::Tensor>>& entries) {
    c10::Dict<std::string, at::Tensor> result;
    for (const auto& [key, value] : entries) result.insert(key, value);
    return result;
  }
  static IValue named_tuple(std::vector<IValue> entries) {
    const std::vector<std::string> fields = {"mean", "scale"};
    std::vector<c10::TypePtr> types;
    for (const IValue& entry : entries) types.push_back(entry.type());
    return c10::ivalue::Tuple::createNamed(std::move(entries),
                                           c10::TupleType::createNamed(c10::QualifiedName("Moments"), fields, types));
  }

  static std::vector<at::Tensor> leaves_of(const IValue& value) {
    std::vector<at::Tensor> leaves;
    EXPECT_EQ(Structure(value, "input").flatten(value, leaves), std::nullopt);
    return leaves;
  }
  static std::optional<std::string> difference(const IValue& captured, const IValue& given) {
    std::vector<at::Tensor> leaves;
    return Structure(captured, "input").flatten(given, leaves);
  }
  static void expect_leaves(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(actual[i].is_same(expected[i])) << "leaf " << i;
  }
};
PIANOLA_ON_EVERY_DEVICE(StructureTest);

TEST_P(StructureTest, ListsTheTensorsInTheOrderOfTheValue) {
  const at::Tensor a = tensor(1), b = tensor(2), c = tensor(3), d = tensor(4), e = tensor(5);
  const IValue value = tuple({a, list({b, c}), IValue(), map({{"late", d}, {"early", e}}), 2.5, "text"});
  EXPECT_EQ(Structure(value, "input").leaves(), 5U);
  expect_leaves(leaves_of(value), {a, b, c, d, e});
}

TEST_P(StructureTest, NamesLeavesByTheirPath) {
  c10::Dict<std::int64_t, std::vector<at::Tensor>> by_number;
  by_number.insert(7, std::vector{tensor(1), tensor(2)});
  const IValue value = tuple({tensor(1), list({tensor(2), tensor(3)}), map({{"mask", tensor(4)}}), by_number});
  const Structure structure(value, "input");
  std::vector<std::string> names;
  for (std::size_t leaf = 0; leaf < structure.leaves(); ++leaf) names.push_back(structure.name_of(leaf));
  EXPECT_THAT(names, ::testing::ElementsAre("input 0", "input 1[0]", "input 1[1]", "input 2['mask']", "input 3[7][0]",
                                            "input 3[7][1]"));
  EXPECT_EQ(Structure(tensor(1), "output").name_of(0), "output");
}

TEST_P(StructureTest, RebuildsValuesOfTheSameTypesAroundOtherTensors) {
  const std::vector<std::optional<at::Tensor>> optionals = {tensor(1), std::nullopt, tensor(2)};
  c10::Dict<std::string, std::vector<at::Tensor>> nested;
  nested.insert("layers", std::vector{tensor(1), tensor(2)});
  const std::vector<std::pair<const char*, IValue>> values = {
      {"a tensor", tensor(1)},
      {"a list", list({tensor(1), tensor(2)})},
      {"a list with None", optionals},
      {"a list of lists", std::vector<std::vector<at::Tensor>>{{tensor(1)}, {}, {tensor(2), tensor(3)}}},
      {"a tuple", tuple({tensor(1), IValue(), 3, 2.5, true, "text"})},
      {"a named tuple", named_tuple({tensor(1), tensor(2)})},
      {"a map", map({{"one", tensor(1)}, {"two", tensor(2)}})},
      {"numbers", std::vector<std::int64_t>{1, 2, 3}},
      {"a list in a map in a tuple", tuple({nested})},
  };
  for (const auto& [name, value] : values) {
    const Structure structure(value, "input");
    std::vector<at::Tensor> others;
    for (std::size_t i = 0; i < structure.leaves(); ++i) others.push_back(tensor(10 + i));
    const IValue rebuilt = structure.rebuild(others);
    EXPECT_EQ(rebuilt.type()->annotation_str(), value.type()->annotation_str()) << name;
    EXPECT_EQ(difference(value, rebuilt), std::nullopt) << name;
    expect_leaves(leaves_of(rebuilt), others);
  }
}

TEST_P(StructureTest, RebuildsNamedTuplesWithTheNamesOfTheirFields) {
  const IValue value = named_tuple({tensor(1), tensor(2)});
  const std::vector<at::Tensor> others = {tensor(3), tensor(4)};
  const auto type = Structure(value, "output").rebuild(others).type()->expect<c10::TupleType>();
  ASSERT_NE(type->schema(), nullptr);
  EXPECT_EQ(type->schema()->arguments()[1].name(), "scale");
}

TEST_P(StructureTest, RebuildsEmptyContainers) {
  const std::vector<IValue> empties = {list({}), tuple({}), map({}), std::vector<std::int64_t>()};
  for (const IValue& empty : empties) {
    const Structure structure(empty, "input");
    EXPECT_EQ(structure.leaves(), 0U);
    EXPECT_EQ(structure.rebuild({}).type()->annotation_str(), empty.type()->annotation_str());
    EXPECT_EQ(difference(empty, structure.rebuild({})), std::nullopt);
  }
}

TEST_P(StructureTest, DoesNotShareContainersWithWhatItRead) {
  c10::Dict<std::string, at::Tensor> dict;
  dict.insert("x", tensor(1));
  const Structure structure(dict, "input");
  const std::vector<at::Tensor> others = {tensor(2)};
  auto first = structure.rebuild(others).toGenericDict();
  first.insert("y", tensor(3));
  dict.insert("z", tensor(3));
  EXPECT_EQ(structure.rebuild(others).toGenericDict().size(), 1U);
}

TEST_P(StructureTest, TakesAnUndefinedTensorForNone) {
  EXPECT_EQ(Structure(at::Tensor(), "input").leaves(), 0U);
  EXPECT_EQ(difference(IValue(), at::Tensor()), std::nullopt);
  EXPECT_EQ(difference(at::Tensor(), IValue()), std::nullopt);
  EXPECT_TRUE(Structure(at::Tensor(), "input").rebuild({}).isNone());
}

TEST_P(StructureTest, FindsMapEntriesByKeyWhateverTheirOrder) {
  const at::Tensor a = tensor(1), b = tensor(2);
  std::vector<at::Tensor> leaves;
  const Structure structure(map({{"a", tensor(3)}, {"b", tensor(4)}}), "input");
  ASSERT_EQ(structure.flatten(map({{"b", b}, {"a", a}}), leaves), std::nullopt);
  expect_leaves(leaves, {a, b});
}

TEST_P(StructureTest, SaysTheFirstDifferenceInWords) {
  const at::Tensor x = tensor(1);
  struct Case {
    IValue captured, given;
    const char* difference;
  };
  const std::vector<Case> cases = {
      {list({x, x}), list({x}), "input: captured a list of 2, received a list of 1"},
      {tuple({x}), tuple({x, x}), "input: captured a tuple of 1, received a tuple of 2"},
      {map({{"a", x}}), map({{"a", x}, {"b", x}}), "input: captured a map of 1, received a map of 2"},
      {map({{"a", x}}), map({{"b", x}}), "input['a']: captured, but missing now"},
      {list({x}), tuple({x}), "input: captured a list of 1, received a tuple of 1"},
      {tuple({x}), list({x}), "input: captured a tuple of 1, received a list of 1"},
      {map({{"a", x}}), list({x}), "input: captured a map of 1, received a list of 1"},
      {x, list({x}), "input: captured a tensor, received a list of 1"},
      {x, IValue(), "input: captured a tensor, received None"},
      {x, at::Tensor(), "input: captured a tensor, received None"},
      {x, 2, "input: captured a tensor, received 2"},
      {IValue(), x, "input: captured None, received a tensor"},
      {2.5, 3.5, "input: captured 2.5, received 3.5"},
      {2, 3, "input: captured 2, received 3"},
      {true, false, "input: captured True, received False"},
      {"fast", "slow", "input: captured fast, received slow"},
      {2, x, "input: captured 2, received a tensor"},
      {2, IValue(), "input: captured 2, received None"},
      {tuple({x, tuple({x, IValue()})}), tuple({x, tuple({x, x})}), "input 1[1]: captured None, received a tensor"},
      {tuple({std::vector<std::int64_t>{1, 2}}), tuple({std::vector<std::int64_t>{1, 3}}),
       "input 0[1]: captured 2, received 3"},
      {tuple({map({{"a", x}})}), tuple({map({{"a", at::Tensor()}})}), "input 0['a']: captured a tensor, received None"},
  };
  for (const Case& tested : cases) {
    EXPECT_THAT(difference(tested.captured, tested.given), Optional(Eq(tested.difference)));
    EXPECT_EQ(difference(tested.captured, tested.captured), std::nullopt) << tested.difference;
  }
}

TEST_P(StructureTest, TellsNumbersOfOneValueButAnotherKindApart) {
  EXPECT_TRUE(difference(2, 2.0).has_value());
  EXPECT_TRUE(difference(1, true).has_value());
}

// A product with -0.0 has another sign; and NaN, which equals nothing, is a number to freeze as any other.
TEST_P(StructureTest, ComparesNumbersBitForBit) {
  EXPECT_TRUE(difference(0.0, -0.0).has_value());
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(difference(nan, nan), std::nullopt);
}

}  // namespace
}  // namespace pianola::callable::structure_test
