#pragma once
#include <pianola/core/export.hpp>

#include <string>

namespace pianola {

/// A line of somebody's source.
struct SourcePlace {
  std::string function = {};  ///< As people say it, without arguments; may be empty.
  std::string file = {};      ///< As the compiler or Python knows it, usually absolute; empty where it is not known.
  int line = 0;               ///< From 1; 0 where it is not known.

  [[nodiscard]] bool known() const noexcept { return !function.empty() || !file.empty(); }
  /// "train_step at loss.cpp:88", or as much of that as is known; empty where nothing is.
  [[nodiscard]] PIANOLA_API std::string text() const;

  friend bool operator==(const SourcePlace&, const SourcePlace&) = default;
};

}  // namespace pianola
