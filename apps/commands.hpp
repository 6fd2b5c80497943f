#pragma once
#include <functional>
#include <string>

namespace CLI {
class App;
}

namespace pianola::program {

/// What the chosen subcommand does; returns the exit code.
using Command = std::function<int()>;

/// Each adds one subcommand to `app`; parsing a command line that names it puts what it does into `chosen`.
/// @param command_line  As it was typed, for reports that say how they were made.
void add_demo(CLI::App& app, Command& chosen, const std::string& command_line);
void add_train(CLI::App& app, Command& chosen, const std::string& command_line);
void add_info(CLI::App& app, Command& chosen);
void add_schedule(CLI::App& app, Command& chosen);
void add_bench(CLI::App& app, Command& chosen);
void add_audit(CLI::App& app, Command& chosen);
void add_verify(CLI::App& app, Command& chosen);
void add_memory(CLI::App& app, Command& chosen);
void add_config(CLI::App& app, Command& chosen);
void add_profile(CLI::App& app, Command& chosen);
void add_decide(CLI::App& app, Command& chosen);
void add_compare(CLI::App& app, Command& chosen);

/// Exit codes, as in the help.
inline constexpr int kSuccess = 0;
inline constexpr int kFailure = 1;
inline constexpr int kUsage = 2;

}  // namespace pianola::program
