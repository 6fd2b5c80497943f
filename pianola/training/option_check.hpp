#pragma once

#include <cstddef>

namespace pianola::training {

/// @throws UsageError  It is infinite or no number.
void check_finite(const char* name, double value);
/// @throws UsageError  It is negative, infinite or no number.
void check_not_negative(const char* name, double value);
/// @throws UsageError  There is none.
void check_groups(std::size_t groups);

}  // namespace pianola::training
