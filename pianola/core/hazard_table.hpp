#pragma once
#include <pianola/core/hazard_rule.hpp>

#include <span>

namespace pianola {

/// The table itself; read it with hazard_rules().
std::span<const HazardRule> hazard_table() noexcept;

}  // namespace pianola
