#include <pianola/parallel/kernel_pointers.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>

namespace pianola::parallel::kernel_pointers_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

std::vector<std::size_t> overlapping(const SpanIndex& index, ByteSpan bytes) {
  std::vector<std::size_t> found;
  index.for_each_overlapping(bytes, [&](std::size_t position) { found.push_back(position); });
  return found;
}

GraphNode kernel_with(const std::vector<std::uintptr_t>& words) {
  KernelNode kernel{.function = std::make_shared<KernelFunction>(), .grid = {}, .block = {}, .arguments = {}};
  kernel.arguments.resize(words.size() * sizeof(std::uintptr_t));
  if (!words.empty()) std::memcpy(kernel.arguments.data(), words.data(), kernel.arguments.size());
  return {.handle = nullptr, .type = NodeType::kernel, .details = kernel};
}

TEST(SpanIndex, FindsAllSpansThatHoldAByte) {
  const std::vector<ByteSpan> spans = {{500, 600}, {100, 900}, {100, 200}, {550, 560}, {1000, 1100}};
  const SpanIndex index(spans);
  EXPECT_THAT(overlapping(index, {555, 556}), UnorderedElementsAre(0U, 1U, 3U));
  EXPECT_THAT(overlapping(index, {560, 561}), UnorderedElementsAre(0U, 1U)) << "an end is outside";
  EXPECT_THAT(overlapping(index, {899, 900}), ElementsAre(1U));
  EXPECT_THAT(overlapping(index, {900, 901}), IsEmpty());
  EXPECT_THAT(overlapping(index, {99, 100}), IsEmpty());
  EXPECT_THAT(overlapping(index, {2000, 2001}), IsEmpty());
  EXPECT_THAT(overlapping(index, {0, 5000}), UnorderedElementsAre(0U, 1U, 2U, 3U, 4U));
}

TEST(SpanIndex, OfNothingHoldsNothing) {
  EXPECT_FALSE(SpanIndex().overlaps({1, 2}));
  EXPECT_FALSE(SpanIndex(std::span<const ByteSpan>()).overlaps({0, 100}));
}

TEST(SpanIndex, TellsOverlapFromContainment) {
  const std::vector<ByteSpan> spans = {{100, 200}, {300, 400}};
  const SpanIndex index(spans);
  EXPECT_TRUE(index.overlaps({150, 250}));
  EXPECT_FALSE(index.contains({150, 250}));
  EXPECT_TRUE(index.contains({150, 200}));
  EXPECT_FALSE(index.contains({150, 350})) << "both ends inside, the middle not";
}

TEST(SpanIndex, AnswersAsALookAtEachSpanWould) {
  std::mt19937 random(7);
  std::uniform_int_distribution<std::uintptr_t> begin(0, 1000), length(1, 120);
  std::vector<ByteSpan> spans;
  for (int i = 0; i < 60; ++i) {
    const std::uintptr_t at = begin(random);
    spans.push_back({at, at + length(random)});
  }
  const SpanIndex index(spans);
  for (std::uintptr_t address = 0; address < 1200; ++address) {
    std::vector<std::size_t> expected;
    for (std::size_t i = 0; i < spans.size(); ++i) {
      if (spans[i].contains(address)) expected.push_back(i);
    }
    EXPECT_THAT(overlapping(index, {address, address + 1}), ::testing::UnorderedElementsAreArray(expected));
  }
}

TEST(MergedSpans, JoinWhatOverlapsOrTouches) {
  EXPECT_THAT(merged({{50, 60}, {10, 20}, {20, 30}, {25, 28}, {55, 70}, {80, 80}}),
              ElementsAre(ByteSpan{10, 30}, ByteSpan{50, 70}));
}

TEST(Pointers, AreTheWordsOfAKernelsArguments) {
  const std::vector<ByteSpan> spans = {{0x1000, 0x1100}, {0x2000, 0x2100}, {0x3000, 0x3100}};
  const Pointers found = pointers_of(kernel_with({0x3010, 42, 0x1000, 0x1100, 0x3020}), SpanIndex(spans));
  EXPECT_TRUE(found.readable);
  EXPECT_THAT(found.spans, ElementsAre(0U, 2U)) << "each once, and 0x1100 is the end of the first";
}

TEST(Pointers, AreNotLookedForBetweenWords) {
  const std::vector<ByteSpan> spans = {{0x1000, 0x1100}};
  const Pointers found = pointers_of(kernel_with({std::uintptr_t{0x1010} << 32U}), SpanIndex(spans));
  EXPECT_THAT(found.spans, IsEmpty());
}

TEST(Pointers, OfFillsAndCopiesAreTheirRanges) {
  const std::vector<ByteSpan> spans = {{0x1000, 0x1100}, {0x2000, 0x2100}};
  const SpanIndex index(spans);
  const GraphNode fill{
      .handle = nullptr, .type = NodeType::memset, .details = MemsetNode{.destination = 0xff0, .bytes = 32}};
  EXPECT_THAT(pointers_of(fill, index).spans, ElementsAre(0U)) << "it begins before the span";
  GraphNode copy{.handle = nullptr,
                 .type = NodeType::memcpy,
                 .details = MemcpyNode{.source = 0x2080, .destination = 0x1080, .bytes = 16}};
  EXPECT_THAT(pointers_of(copy, index).spans, ElementsAre(0U, 1U));
  EXPECT_TRUE(pointers_of(copy, index).readable);
  std::get<MemcpyNode>(copy.details).source = 0;
  EXPECT_FALSE(pointers_of(copy, index).readable) << "an array has no address";
}

TEST(Pointers, CannotBeToldWhereTheDriverDoesNotExplainTheNode) {
  EXPECT_FALSE(pointers_of(kernel_with({}), SpanIndex()).readable);
  EXPECT_FALSE(pointers_of({.handle = nullptr, .type = NodeType::kernel}, SpanIndex()).readable);
  EXPECT_FALSE(pointers_of({.handle = nullptr, .type = NodeType::memset}, SpanIndex()).readable);
  EXPECT_TRUE(pointers_of({.handle = nullptr, .type = NodeType::empty}, SpanIndex()).readable);
}

}  // namespace
}  // namespace pianola::parallel::kernel_pointers_test
