#pragma once
#include <pianola/config/field.hpp>

#include <span>

namespace pianola {

/// The table itself; read it with config_fields().
std::span<const ConfigField> config_field_table() noexcept;

}  // namespace pianola
