#include <pianola/training/buckets.hpp>

#include <pianola/core/error.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

namespace pianola {

std::int64_t Buckets::bucket_of(std::int64_t length) const {
  const auto found = std::lower_bound(sizes.begin(), sizes.end(), length);
  if (found == sizes.end()) {
    throw UsageError(
        {.what = fmt::format("no bucket holds a length of {}; the buckets are {}", length, fmt::join(sizes, ", ")),
         .fix = "cut the batch, or add a larger bucket"});
  }
  return *found;
}

void Buckets::check() const {
  if (sizes.empty() && !padding.empty()) {
    throw UsageError({.what = "the buckets have paddings, but no sizes", .fix = "list the lengths to pad to"});
  }
  const bool ascending = std::is_sorted(sizes.begin(), sizes.end(), std::less_equal<>());
  if (!ascending || (!sizes.empty() && sizes.front() < 1)) {
    throw UsageError({.what = fmt::format("the sizes of buckets must be 1 or more, each larger than the one before, "
                                          "got {}",
                                          fmt::join(sizes, ", "))});
  }
}

double BucketUse::waste_percent() const noexcept {
  const std::size_t all = elements + padding;
  return all == 0 ? 0 : 100.0 * static_cast<double>(padding) / static_cast<double>(all);
}

}  // namespace pianola
