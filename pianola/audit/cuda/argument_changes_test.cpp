#include <pianola/audit/cuda/argument_changes.hpp>

#include <gmock/gmock.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace pianola::auditing::argument_changes_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::uintptr_t kLive = 0x7f0000000000;  // where addresses of CUDA begin, in these tests

/// A block of arguments, parameter by parameter.
class Arguments {
 public:
  template <typename T>
  Arguments& add(T value) {
    const std::size_t at = (bytes.size() + sizeof value - 1) / sizeof value * sizeof value;
    bytes.resize(at + sizeof value);
    std::memcpy(bytes.data() + at, &value, sizeof value);
    parameters.push_back({.offset = at, .size = sizeof value});
    return *this;
  }
  /// One parameter of several words.
  Arguments& structure(const std::vector<std::uint32_t>& words) {
    const std::size_t at = (bytes.size() + 7) / 8 * 8;
    bytes.resize(at + 4 * words.size());
    std::memcpy(bytes.data() + at, words.data(), 4 * words.size());
    parameters.push_back({.offset = at, .size = 4 * words.size()});
    return *this;
  }
  std::vector<std::byte> bytes;
  std::vector<KernelParameter> parameters;
};

CapturedKernel kernel(const Arguments& arguments, const std::string& name = "custom", std::size_t operation = 1) {
  auto function = std::make_shared<KernelFunction>();
  function->symbol = function->name = function->short_name = name;
  function->parameters = arguments.parameters;
  CapturedKernel made;
  made.node.function = function;
  made.node.arguments = arguments.bytes;
  made.operation = operation;
  return made;
}

CapturedStep step(std::vector<CapturedKernel> kernels) {
  return {.operations = {"aten::mm", "aten::relu"}, .kernels = std::move(kernels), .pool = {}};
}

CapturedStep step(const Arguments& arguments) { return step(std::vector{kernel(arguments)}); }

std::vector<ArgumentChange> changes(const CapturedStep& first, const CapturedStep& second, const CapturedStep& third) {
  return argument_changes(first, second, third, [](std::uintptr_t address) { return address >> 20U == kLive >> 20U; });
}

/// The changes of one kernel of one parameter, in words.
template <typename T>
std::vector<std::string> words(T first, T second, T third) {
  std::vector<std::string> all;
  for (const ArgumentChange& change :
       changes(step(Arguments().add(first)), step(Arguments().add(second)), step(Arguments().add(third)))) {
    all.push_back((change.address ? "address " : "") + in_words(change));
  }
  return all;
}

TEST(ArgumentChanges, OfEqualCapturesAreNone) {
  EXPECT_THAT(words(5, 5, 5), IsEmpty());
  EXPECT_THAT(words(0.5, 0.5, 0.5), IsEmpty());
}

TEST(ArgumentChanges, BetweenIterationsAreFrozenValues) {
  EXPECT_THAT(words(5, 5, 7), ElementsAre("5 -> 7"));
  EXPECT_THAT(words(-5, -5, 7), ElementsAre("-5 -> 7"));
  EXPECT_THAT(words(0.5F, 0.5F, 0.25F), ElementsAre("0.5 -> 0.25 (as integers 1056964608 -> 1048576000)"));
  EXPECT_THAT(words(0.5, 0.5, 0.25),
              ElementsAre("0.5 -> 0.25 (as integers 4602678819172646912 -> 4598175219545276416)"));
  EXPECT_THAT(words(std::int64_t{1} << 40, std::int64_t{1} << 40, std::int64_t{-1}),
              ElementsAre("1099511627776 -> -1"));
  EXPECT_THAT(words(true, true, false), ElementsAre("1 -> 0"));
  EXPECT_THAT(words(std::int16_t{3}, std::int16_t{3}, std::int16_t{-3}), ElementsAre("3 -> -3"));
}

TEST(ArgumentChanges, BetweenCapturesOfOneStateAreNoise) {
  EXPECT_THAT(words(5, 7, 5), IsEmpty());
  EXPECT_THAT(words(5, 9, 1234567), IsEmpty());
  EXPECT_THAT(words(0.5F, 0.75F, 0.5F), IsEmpty());
}

TEST(ArgumentChanges, ThatGoOnEvenlyAreCountersOfTheStep) {
  EXPECT_THAT(words(5, 6, 7), ElementsAre("6 -> 7"));
  EXPECT_THAT(words(7, 5, 3), ElementsAre("5 -> 3"));
  EXPECT_THAT(words(std::int64_t{1}, std::int64_t{2}, std::int64_t{3}), ElementsAre("2 -> 3"));
  EXPECT_THAT(words(0.1F, 0.2F, 0.3F), SizeIs(1));
  EXPECT_THAT(words(1.0, 2.0, 3.0), SizeIs(1));
  EXPECT_THAT(words(std::int64_t{1} << 40, std::int64_t{2} << 40, std::int64_t{3} << 40), IsEmpty())
      << "addresses of the host may lie evenly, too";
}

TEST(ArgumentChanges, OfASingleByteAreFlags) {
  EXPECT_THAT(words(false, false, true), ElementsAre("0 -> 1"));
  EXPECT_THAT(words(std::uint8_t{0}, std::uint8_t{0}, std::uint8_t{87}), IsEmpty()) << "an empty functor has no value";
}

TEST(ArgumentChanges, OfAddressesAreMovedPointers) {
  EXPECT_THAT(words(kLive, kLive, kLive + 0x200), ElementsAre("address 0x7f0000000000 -> 0x7f0000000200"));
  EXPECT_THAT(words(kLive, kLive, std::uintptr_t{0}), ElementsAre("address 0x7f0000000000 -> 0x0"));
}

TEST(ArgumentChanges, OfAddressesBetweenCapturesOfOneStateAreNoiseAlsoWhereTheyLieEvenly) {
  EXPECT_THAT(words(kLive, kLive + 0x200, kLive + 0x400), IsEmpty());
}

TEST(ArgumentChanges, OfAddressesInTheGraphsOwnMemoryAreNone) {
  CapturedStep first = step(Arguments().add(std::uint64_t{0x1000})), second = first;
  CapturedStep third = step(Arguments().add(std::uint64_t{0x5000}));
  EXPECT_THAT(changes(first, second, third), SizeIs(1)) << "unknown memory: a number";
  first.pool = second.pool = {{.begin = 0x800, .end = 0x1800}};
  third.pool = {{.begin = 0x4000, .end = 0x6000}};
  EXPECT_THAT(changes(first, second, third), IsEmpty());
}

TEST(ArgumentChanges, FindTheWordInAStruct) {
  const auto with = [](std::uint32_t low, std::uint32_t high) {
    return step(Arguments().add(1).structure({1, 2, low, high, 5}));
  };
  const auto one = changes(with(3, 4), with(3, 4), with(9, 4));
  ASSERT_THAT(one, SizeIs(1));
  EXPECT_EQ(one[0].parameter, 1U);
  EXPECT_EQ(one[0].size, 4U);
  EXPECT_EQ(in_words(one[0]), "3 -> 9");
  const auto both = changes(with(3, 4), with(3, 4), with(9, 8));
  ASSERT_THAT(both, SizeIs(1));
  EXPECT_EQ(both[0].size, 8U);
  EXPECT_THAT(changes(with(3, 4), with(77, 4), with(9, 4)), IsEmpty()) << "a slot that was never filled";
}

TEST(ArgumentChanges, FindAnAddressInAStruct) {
  const auto with = [](std::uintptr_t address) {
    return step(Arguments().structure(
        {1, 2, static_cast<std::uint32_t>(address), static_cast<std::uint32_t>(address >> 32U), 5}));
  };
  const auto moved = changes(with(kLive), with(kLive), with(kLive + 64));
  ASSERT_THAT(moved, SizeIs(1));
  EXPECT_TRUE(moved[0].address);
  EXPECT_THAT(changes(with(kLive), with(kLive + 64), with(kLive + 128)), IsEmpty());
}

TEST(ArgumentChanges, OfSeveralParametersAreOneEach) {
  const auto with = [](int count, float scale) {
    return step(Arguments().add(kLive).add(count).add(scale).add(std::int64_t{8}));
  };
  const auto found = changes(with(1, 0.5F), with(1, 0.5F), with(2, 0.25F));
  ASSERT_THAT(found, SizeIs(2));
  EXPECT_EQ(found[0].parameter, 1U);
  EXPECT_EQ(found[1].parameter, 2U);
}

TEST(ArgumentChanges, OfKernelsOfAtenAreNotLookedAt) {
  const auto of_aten = [](int value) {
    CapturedKernel made = kernel(Arguments().add(value));
    made.atens = true;
    return step({made});
  };
  EXPECT_THAT(changes(of_aten(1), of_aten(1), of_aten(2)), IsEmpty());
}

TEST(ArgumentChanges, OfAtensKernelsInsideOthersAreFoundInSmallParametersOnly) {
  const auto with = [](int number, std::uint32_t slot) {
    return step({kernel(Arguments().add(number).structure({1, 2, 3, 4, slot, 6}), "void at::native::elementwise()")});
  };
  EXPECT_THAT(changes(with(1, 5), with(1, 5), with(1, 7)), IsEmpty());
  EXPECT_THAT(changes(with(1, 5), with(1, 5), with(2, 7)), SizeIs(1));
}

TEST(ArgumentChanges, AreNotLookedForWhereTheOperationsDiffer) {
  CapturedStep other = step(Arguments().add(2));
  other.operations = {"aten::mm"};
  EXPECT_THAT(changes(step(Arguments().add(1)), step(Arguments().add(1)), other), IsEmpty());
}

TEST(ArgumentChanges, AreLookedForBehindEachOperationByItself) {
  // Behind the second operation there is one kernel more in the third capture: only the first group can be compared.
  const auto with = [](int value, std::size_t more) {
    std::vector<CapturedKernel> all = {kernel(Arguments().add(value), "a", 1), kernel(Arguments().add(value), "b", 2)};
    for (std::size_t i = 0; i < more; ++i) all.push_back(kernel(Arguments().add(value), "b", 2));
    return step(std::move(all));
  };
  const auto found = changes(with(1, 0), with(1, 0), with(2, 1));
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].kernel, 0U);
}

TEST(ArgumentChanges, AreNotLookedForBetweenOtherFunctions) {
  EXPECT_THAT(changes(step({kernel(Arguments().add(1), "a")}), step({kernel(Arguments().add(1), "a")}),
                      step({kernel(Arguments().add(2), "b")})),
              IsEmpty());
}

TEST(ArgumentChanges, AreNotFoundWhereTheDriverTellsNoArguments) {
  EXPECT_THAT(changes(step(Arguments()), step(Arguments()), step(Arguments())), IsEmpty());
}

}  // namespace
}  // namespace pianola::auditing::argument_changes_test
