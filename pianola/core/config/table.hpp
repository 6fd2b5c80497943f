#pragma once
#include <pianola/core/config/rule.hpp>

#include <span>

namespace pianola {

/// The table itself; read it with config_rules().
std::span<const ConfigRule> config_table() noexcept;

}  // namespace pianola
