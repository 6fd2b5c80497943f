#pragma once

#include <cstdint>
#include <string_view>

namespace pianola {

// What options are checked by: one wording for all.

/// @throws UsageError  "warmup must be 1 or more, got 0".
void check_at_least(std::int64_t least, std::string_view name, std::int64_t value);
/// @throws UsageError  It is infinite or no number: "dampening must be finite, got nan".
void check_finite(std::string_view name, double value);
/// @throws UsageError  It is negative, infinite or no number: "eps must be finite and 0 or more, got -1e-09".
void check_not_negative(std::string_view name, double value);
/// @throws UsageError  It is 0, negative, infinite or no number.
void check_positive(std::string_view name, double value);

}  // namespace pianola
