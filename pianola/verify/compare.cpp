#include <pianola/verify/compare.hpp>

#include <pianola/trace/describe.hpp>
#include <pianola/trace/quiet_scope.hpp>
#include <pianola/verify/bits.hpp>
#include <pianola/verify/closer_look.hpp>

#include <c10/util/Exception.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <utility>

namespace pianola::verification {
namespace {

bool comparable(const Pair& pair) {
  return pair.eager.defined() && pair.graphed.defined() && pair.eager.sizes() == pair.graphed.sizes() &&
         pair.eager.scalar_type() == pair.graphed.scalar_type();
}

bool is_zero(const at::Tensor& tensor) {
  const trace::QuietScope quiet;
  return tensor.numel() == 0 || !tensor.any().item<bool>();
}

// What is undefined in eager and zero in the graph is the same gradient.
bool both_without_gradient(const Pair& pair) {
  if (!pair.eager.defined() && !pair.graphed.defined()) return true;
  return pair.role == "gradient" && !pair.eager.defined() && is_zero(pair.graphed);
}

TensorDifference named(const Pair& pair, int step) {
  const at::Tensor& known = pair.eager.defined() ? pair.eager : pair.graphed;
  return {.name = pair.name,
          .role = pair.role,
          .step = step,
          .shape = shape_text(known),
          .elements = static_cast<std::size_t>(known.numel())};
}

// Nothing to count where there is no element to lay beside another.
Mismatch not_alike(const Pair& pair, int step, const SideNames& names) {
  Mismatch mismatch{.difference = named(pair, step)};
  mismatch.difference.differing = mismatch.difference.elements;
  if (pair.eager.defined() && pair.graphed.defined()) {
    mismatch.difference.note =
        fmt::format("{} {}, {} {}", names.one, shape_text(pair.eager), names.other, shape_text(pair.graphed));
  } else {
    mismatch.difference.note = fmt::format("undefined in {}", pair.eager.defined() ? names.other : names.one);
  }
  return mismatch;
}

CloserLook look_closer_where_there_is_room(const Pair& pair, const Tolerance& tolerance, const SideNames& names) {
  try {
    return look_closer(pair.eager, pair.graphed, tolerance, names);
  } catch (const c10::OutOfMemoryError&) {
    return look_closer(pair.eager.cpu(), pair.graphed.cpu(), tolerance, names);
  }
}

// A generator's state is no number: that it differs is all there is to say, unless its position is in it.
std::string position_text(const at::Tensor& state) {
  constexpr std::int64_t kSeedAndOffset = 2 * sizeof(std::int64_t);
  if (state.numel() != kSeedAndOffset || !state.is_cpu()) return "";
  const auto* numbers = static_cast<const std::int64_t*>(state.const_data_ptr());
  return fmt::format("seed {}, offset {}", static_cast<std::uint64_t>(numbers[0]), numbers[1]);
}

Mismatch of_generator(const Pair& pair, int step, const SideNames& names) {
  Mismatch mismatch{.difference = named(pair, step)};
  TensorDifference& difference = mismatch.difference;
  difference.shape.clear();
  difference.elements = difference.differing = 1;
  const std::string eager = position_text(pair.eager);
  difference.note = "it stands elsewhere: another count of random numbers was drawn";
  if (!eager.empty()) {
    difference.first = fmt::format("{} {}, {} {}", names.one, eager, names.other, position_text(pair.graphed));
  }
  return mismatch;
}

}  // namespace

std::string shape_text(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  return trace::type_of(tensor);
}

namespace {

// A pair whose bits differ; nothing where the tolerance explains it.
std::optional<Mismatch> judge(const Pair& pair, const Tolerances& tolerances, int step, const SideNames& names) {
  if (pair.role == "generator") return of_generator(pair, step, names);
  const auto given = tolerances.find(pair.eager.scalar_type());
  const Tolerance tolerance = given == tolerances.end() ? Tolerance{} : given->second;
  CloserLook look = look_closer_where_there_is_room(pair, tolerance, names);
  if (look.differing == 0) return std::nullopt;
  Mismatch mismatch{.difference = named(pair, step), .graph_has_nan = look.only_other_has_nan};
  mismatch.difference.differing = look.differing;
  mismatch.difference.max_absolute = look.max_absolute;
  mismatch.difference.max_relative = look.max_relative;
  mismatch.difference.max_ulps = look.max_ulps;
  mismatch.difference.first = std::move(look.first);
  return mismatch;
}

}  // namespace

Comparison compare(const std::vector<Pair>& pairs, const Tolerances& tolerances, int step, const SideNames& names) {
  BitCheck check;
  for (const Pair& pair : pairs) {
    if (comparable(pair)) check.add(pair.eager, pair.graphed);
  }
  const std::vector<bool> equal = check.take();
  Comparison comparison;
  std::size_t next = 0;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    std::optional<Mismatch> mismatch;
    if (!comparable(pairs[i])) {
      if (!both_without_gradient(pairs[i])) mismatch = not_alike(pairs[i], step, names);
    } else if (!equal[next++]) {
      comparison.same_bits = false;
      mismatch = judge(pairs[i], tolerances, step, names);
    }
    if (!mismatch) continue;
    mismatch->pair = i;
    comparison.mismatches.push_back(*std::move(mismatch));
  }
  return comparison;
}

}  // namespace pianola::verification
