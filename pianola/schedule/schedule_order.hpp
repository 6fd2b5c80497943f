#pragma once
#include <pianola/schedule/schedule.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pianola::detail {

/// "entry 5 of 8"; `index` counts from 0.
[[nodiscard]] std::string entry_place(std::size_t index, std::size_t entries);

/// The entries of an order as text. @throws ScheduleError  One is not a number.
[[nodiscard]] std::vector<double> parse_entries(std::string_view text);

/// The steps that the entries of an order stand for. @throws ScheduleError  As Schedule::from_order.
[[nodiscard]] std::vector<ScheduleStep> checked_steps(std::span<const double> order);

}  // namespace pianola::detail
