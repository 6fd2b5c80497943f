#pragma once
#include <pianola/config/cuda_graph_config.hpp>
#include <pianola/core/export.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace pianola {

/// A value as files and Python have it: nothing, true or false, a number, a text, or a list of texts or integers.
using ConfigValue = std::variant<std::monostate, bool, std::int64_t, double, std::string, std::vector<std::string>,
                                 std::vector<std::int64_t>>;

/// As in a file: `true`, `3`, `"local"`, `["attn", "mlp"]`; `unset` where there is nothing.
[[nodiscard]] PIANOLA_API std::string written_out(const ConfigValue& value);

/// One member of a CudaGraphConfig: where it stands in a file, what it means, and how it is read and written.
struct ConfigField {
  using Member = std::variant<
      bool CudaGraphConfig::*, int CudaGraphConfig::*, std::string CudaGraphConfig::*,
      std::vector<int> CudaGraphConfig::*, std::vector<std::string> CudaGraphConfig::*,
      std::optional<bool> CudaGraphConfig::*, std::optional<int> CudaGraphConfig::*,
      std::optional<double> CudaGraphConfig::*, std::optional<std::string> CudaGraphConfig::*,
      ConfigTarget CudaGraphConfig::*, CudaGraphImpl CudaGraphConfig::*, TransformerImpl CudaGraphConfig::*,
      TokenDispatcher CudaGraphConfig::*, std::vector<CudaGraphModule> CudaGraphConfig::*,
      std::optional<RecomputeGranularity> CudaGraphConfig::*, std::optional<InferenceGraphScope> CudaGraphConfig::*>;

  std::string_view section;  ///< "model", "dataset.offline_packing_specs"; empty: the top of the file.
  std::string_view name;     ///< The member's name, which is the last part of its key.
  std::string_view meaning;  ///< What it says, a phrase.
  Member member;

  /// "model.cuda_graph_impl"
  [[nodiscard]] PIANOLA_API std::string path() const;
  /// What may be written there, in words: "true or false", "one of none, local, transformer_engine, full_iteration".
  [[nodiscard]] PIANOLA_API std::string accepts() const;
  /// Nothing where the member is an empty optional.
  [[nodiscard]] PIANOLA_API ConfigValue get(const CudaGraphConfig& config) const;
  /// Writes it. A text with commas may stand for a list, an integer for a number, and nothing for an empty list.
  ///
  /// @throws ConfigError  The value is of another type, or is none of the names that there are; `config` is as before.
  PIANOLA_API void set(CudaGraphConfig& config, const ConfigValue& value) const;
};

/// All members, in the order of the struct.
[[nodiscard]] PIANOLA_API std::span<const ConfigField> config_fields() noexcept;

/// By its path or by its name alone; nullptr where there is none.
[[nodiscard]] PIANOLA_API const ConfigField* find_config_field(std::string_view key) noexcept;

/// By its path or by its name alone. @throws ConfigError  There is none; the message has the nearest name.
[[nodiscard]] PIANOLA_API const ConfigField& config_field(std::string_view key);

}  // namespace pianola
