#pragma once
#include <pianola/config/rule.hpp>

#include <span>

namespace pianola {

/// The table itself; read it with config_rules().
std::span<const ConfigRule> config_table() noexcept;

}  // namespace pianola
