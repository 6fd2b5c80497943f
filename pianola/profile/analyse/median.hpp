#pragma once
#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <vector>

namespace pianola::profiling {

/// The middle value, of an even number of values the mean of the two in the middle; 0 of none.
template <class T>
[[nodiscard]] T median(std::vector<T> values) {
  if (values.empty()) return T{};
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

}  // namespace pianola::profiling
