#pragma once
#include <string>
#include <utility>
#include <vector>

namespace pianola::profiling {

/// How a program ended.
struct Ending {
  int exit_code = 0;  ///< 128 + signal where a signal ended it.
  int signal = 0;     ///< 0: none.
};

/// Runs a program to its end, with more variables in its environment; SIGINT and SIGTERM are passed on to it.
/// @throws UsageError  It could not be started.
[[nodiscard]] Ending run_to_end(const std::vector<std::string>& command,
                                const std::vector<std::pair<std::string, std::string>>& environment);

}  // namespace pianola::profiling
