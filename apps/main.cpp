#include <apps/commands.hpp>

#include <pianola/core/version.hpp>

#include <fmt/format.h>
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <cstdio>
#include <exception>
#include <string>
#include <string_view>

namespace pianola::program {
namespace {

constexpr std::string_view kFooter =
    "Exit codes: 0 success, 1 the work failed, 2 the command line is wrong, 3 hazards, differences or errors were "
    "found.\n"
    "'pianola COMMAND --help' tells about a command.";

std::string joined(int argc, char** argv) {
  std::string text = "pianola";
  for (int i = 1; i < argc; ++i) text += fmt::format(" {}", argv[i]);
  return text;
}

// The subcommand that was named, for the hint; "" if none was.
std::string named_subcommand(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return parsed.empty() ? "" : parsed.front()->get_name() + " ";
}

// Help and version are asked for by exceptions too: those have exit code 0.
int report_parse_result(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return app.exit(error);
  fmt::print(stderr, "pianola: {}\nTry 'pianola {}--help'.\n", error.what(), named_subcommand(app));
  return kUsage;
}

int run(const Command& command) {
  try {
    return command();
  } catch (const std::exception& error) {
    fmt::print(stderr, "pianola: {}\n", error.what());
    return kFailure;
  }
}

int parse_and_run(int argc, char** argv) {
  Command chosen;
  CLI::App app("CUDA graphs in PyTorch: safe, fast and easy.", "pianola");
  app.set_version_flag("--version", fmt::format("pianola {}", version()));
  app.footer(std::string(kFooter));
  app.require_subcommand(0, 1);
  app.get_formatter()->column_width(24);
  add_demo(app, chosen, joined(argc, argv));
  add_info(app, chosen);
  add_schedule(app, chosen);
  add_audit(app, chosen);
  add_verify(app, chosen);
  add_config(app, chosen);
  add_profile(app, chosen);
  add_decide(app, chosen);
  add_compare(app, chosen);
  add_bench(app, chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return report_parse_result(app, error);
  }
  if (chosen) return run(chosen);
  fmt::print("{}", app.help());
  return kSuccess;
}

}  // namespace
}  // namespace pianola::program

int main(int argc, char** argv) { return pianola::program::parse_and_run(argc, argv); }
