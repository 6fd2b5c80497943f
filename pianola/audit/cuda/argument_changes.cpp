#include <pianola/audit/cuda/argument_changes.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

namespace pianola::auditing {
namespace {

constexpr std::size_t kWord = 8;
// Kernels of ATen inside other operations: their larger structs hold tables that are filled in part.
constexpr std::size_t kLargestOfAten = 16;
// A counter that goes on by more than this is no counter.
constexpr std::int64_t kLargestStep = 1 << 20;

struct Triple {
  const CapturedKernel& first;
  const CapturedKernel& second;
  const CapturedKernel& third;
};

std::uint64_t number_at(const CapturedKernel& kernel, std::size_t at, std::size_t size) {
  std::uint64_t number = 0;
  std::memcpy(&number, kernel.node.arguments.data() + at, size);
  return number;
}

std::int64_t sign_extended(std::uint64_t number, std::size_t size) {
  const auto unused = static_cast<int>(64 - 8 * size);
  return static_cast<std::int64_t>(number << unused) >> unused;
}

std::optional<double> as_float(std::uint64_t number, std::size_t size) {
  if (size == 4) return std::bit_cast<float>(static_cast<std::uint32_t>(number));
  if (size == 8) return std::bit_cast<double>(number);
  return std::nullopt;
}

// A float that somebody may have meant: most integers are tiny or no number at all when read as one.
bool plausible(double value) {
  const double size = std::abs(value);
  return value == 0 || (size > 1e-12 && size < 1e12);
}

bool goes_on_evenly(const ArgumentChange& part) {
  const auto integer = [&](std::uint64_t number) { return sign_extended(number, part.size); };
  const std::int64_t step = static_cast<std::int64_t>(static_cast<std::uint64_t>(integer(part.second)) -
                                                      static_cast<std::uint64_t>(integer(part.first)));
  const std::int64_t next = static_cast<std::int64_t>(static_cast<std::uint64_t>(integer(part.third)) -
                                                      static_cast<std::uint64_t>(integer(part.second)));
  if (step == next && step != 0 && std::abs(step) <= kLargestStep) return true;
  const auto first = as_float(part.first, part.size);
  if (!first) return false;
  const double second = *as_float(part.second, part.size), third = *as_float(part.third, part.size);
  if (!plausible(*first) || !plausible(second) || !plausible(third)) return false;
  const double tolerance = 1e-5 * std::max(std::abs(*first), std::abs(third));
  return second != *first && std::abs((third - second) - (second - *first)) <= tolerance;
}

bool in_any(std::uint64_t address, const std::vector<ByteSpan>& spans) {
  return std::any_of(spans.begin(), spans.end(), [&](const ByteSpan& span) { return span.contains(address); });
}

class Comparison {
 public:
  Comparison(const CapturedStep& first, const CapturedStep& second, const CapturedStep& third,
             const std::function<bool(std::uintptr_t)>& is_address)
      : first_(first), second_(second), third_(third), is_address_(is_address) {}

  std::vector<ArgumentChange> run() {
    if (first_.operations != second_.operations || first_.operations != third_.operations) return {};
    for (std::size_t operation = 0; operation <= first_.operations.size(); ++operation) {
      for (const bool inside : {true, false}) compare_group(operation, inside);
    }
    return std::move(changes_);
  }

 private:
  static std::vector<std::size_t> group(const CapturedStep& step, std::size_t operation, bool inside) {
    std::vector<std::size_t> positions;
    for (std::size_t i = 0; i < step.kernels.size(); ++i) {
      const CapturedKernel& kernel = step.kernels[i];
      if (kernel.operation == operation && kernel.inside == inside && !kernel.atens) positions.push_back(i);
    }
    return positions;
  }

  void compare_group(std::size_t operation, bool inside) {
    const auto first = group(first_, operation, inside);
    const auto second = group(second_, operation, inside);
    const auto third = group(third_, operation, inside);
    if (first.size() != second.size() || first.size() != third.size()) return;
    for (std::size_t i = 0; i < first.size(); ++i) {
      const Triple triple{first_.kernels[first[i]], second_.kernels[second[i]], third_.kernels[third[i]]};
      if (!same_function(triple)) return;
    }
    for (std::size_t i = 0; i < first.size(); ++i) {
      compare({first_.kernels[first[i]], second_.kernels[second[i]], third_.kernels[third[i]]}, third[i]);
    }
  }

  static bool same_function(const Triple& triple) {
    const auto same = [](const KernelNode& a, const KernelNode& b) {
      return a.function->symbol == b.function->symbol && a.arguments.size() == b.arguments.size();
    };
    return same(triple.first.node, triple.second.node) && same(triple.first.node, triple.third.node);
  }

  void compare(const Triple& triple, std::size_t position) {
    const KernelFunction& function = *triple.third.node.function;
    if (triple.third.node.arguments.empty()) return;
    const bool of_aten = function.name.find("at::native::") != std::string::npos;
    for (std::size_t parameter = 0; parameter < function.parameters.size(); ++parameter) {
      const auto [begin, size] = function.parameters[parameter];
      if (of_aten && size > kLargestOfAten) continue;
      // Words stand at multiples of their size in the block of arguments, whose parameters are aligned.
      for (std::size_t at = begin; at < begin + size;) {
        const std::size_t rest = begin + size - at;
        ArgumentChange part;
        part.kernel = position;
        part.parameter = parameter;
        at += compare_at(triple, part, at, std::min(rest, kWord - at % kWord), size);
      }
    }
  }

  // Compares `size` bytes at most, up to the end of a word. @return How many were compared.
  std::size_t compare_at(const Triple& triple, ArgumentChange part, std::size_t at, std::size_t size,
                         std::size_t of_parameter) {
    if (size == kWord && take(triple, part, at, kWord) && is_address(part)) {
      add_address(part);
      return kWord;
    }
    std::size_t unit = size >= kWord ? kWord : std::bit_floor(size);
    // In a struct a word may be two numbers, unless both halves changed.
    if (unit == kWord && of_parameter != kWord && !both_halves_differ(triple, at)) unit = kWord / 2;
    if (take(triple, part, at, unit)) add_value(part);
    return unit;
  }

  // Reads a part. @return Whether it differs anywhere.
  static bool take(const Triple& triple, ArgumentChange& part, std::size_t at, std::size_t size) {
    part.size = size;
    part.first = number_at(triple.first, at, size);
    part.second = number_at(triple.second, at, size);
    part.third = number_at(triple.third, at, size);
    return part.first != part.second || part.first != part.third;
  }

  static bool both_halves_differ(const Triple& triple, std::size_t at) {
    ArgumentChange half{};
    return take(triple, half, at, kWord / 2) && take(triple, half, at + kWord / 2, kWord / 2);
  }

  bool is_address(const ArgumentChange& part) const {
    return in_any(part.first, first_.pool) || in_any(part.second, second_.pool) || in_any(part.third, third_.pool) ||
           is_address_(part.first) || is_address_(part.second) || is_address_(part.third);
  }

  // Memory of its own is new in each capture.
  void add_address(ArgumentChange part) {
    const bool own = in_any(part.first, first_.pool) && in_any(part.third, third_.pool);
    if (part.by_the_step() || own) return;
    part.address = true;
    changes_.push_back(part);
  }

  void add_value(ArgumentChange part) {
    if (part.by_the_step() && !goes_on_evenly(part)) return;
    // An object without members, a functor say, is a byte that nobody fills; a flag is 0 or 1.
    if (part.size == 1 && std::max({part.first, part.second, part.third}) > 1) return;
    changes_.push_back(part);
  }

  const CapturedStep& first_;
  const CapturedStep& second_;
  const CapturedStep& third_;
  const std::function<bool(std::uintptr_t)>& is_address_;
  std::vector<ArgumentChange> changes_;
};

std::string text_of(std::uint64_t number, std::size_t size, bool floating) {
  if (floating && size == 4) return fmt::format("{}", std::bit_cast<float>(static_cast<std::uint32_t>(number)));
  if (floating) return fmt::format("{}", std::bit_cast<double>(number));
  return fmt::format("{}", sign_extended(number, size));
}

}  // namespace

std::vector<ArgumentChange> argument_changes(const CapturedStep& first, const CapturedStep& second,
                                             const CapturedStep& third,
                                             const std::function<bool(std::uintptr_t)>& is_address) {
  return Comparison(first, second, third, is_address).run();
}

std::string in_words(const ArgumentChange& change) {
  const std::uint64_t before = change.by_the_step() ? change.second : change.first;
  if (change.address) return fmt::format("{:#x} -> {:#x}", before, change.third);
  const auto both = [&](bool floating) {
    return fmt::format("{} -> {}", text_of(before, change.size, floating),
                       text_of(change.third, change.size, floating));
  };
  const auto from = as_float(before, change.size), to = as_float(change.third, change.size);
  const bool floating = from && plausible(*from) && plausible(*to);
  return floating ? fmt::format("{} (as integers {})", both(true), both(false)) : both(false);
}

}  // namespace pianola::auditing
