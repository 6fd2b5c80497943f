#include <apps/commands.hpp>
#include <apps/python_command.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/version.hpp>

#include <fmt/format.h>
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <cerrno>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <system_error>

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

// Whatever becomes of it: stderr may be closed, and there is nobody else to tell.
void complain(const std::string& text) noexcept {
  (void)std::fputs("pianola: ", stderr);
  (void)std::fputs(text.c_str(), stderr);
  (void)std::fputs("\n", stderr);
}

// Of an error that does not say itself what it is about.
std::string with_place(std::string_view what, const std::string& command_line) {
  what = what.substr(0, what.find("\nException raised from "));  // Torch's stack follows.
  return Error({.what = std::string(what), .where = command_line}).what();
}

// What was printed may not have been written yet: a full disk shows now, and would leave an exit code without a word.
int with_output(int code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  complain(fmt::format("cannot write to standard output: {}", std::generic_category().message(errno)));
  return kFailure;
}

// Help and version are asked for by exceptions too: those have exit code 0.
int report_parse_result(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return with_output(app.exit(error));
  complain(fmt::format("{}\nTry 'pianola {}--help'.", error.what(), named_subcommand(app)));
  return kUsage;
}

int run(const Command& command, const std::string& command_line) {
  try {
    return with_output(command());
  } catch (const Error& error) {
    complain(error.what());
  } catch (const std::bad_alloc&) {
    complain(with_place("there is not enough memory", command_line));
  } catch (const std::system_error& error) {
    const bool of_output = std::ferror(stdout) != 0;
    complain(of_output ? fmt::format("cannot write to standard output: {}", error.code().message())
                       : with_place(error.what(), command_line));
  } catch (const std::exception& error) {
    complain(with_place(error.what(), command_line));
  } catch (...) {
    complain(with_place("something that is no error was thrown", command_line));
  }
  (void)std::fflush(stdout);
  return kFailure;
}

int parse_and_run(int argc, char** argv) {
  const std::string command_line = joined(argc, argv);
  Command chosen;
  CLI::App app("CUDA graphs in PyTorch: safe, fast and easy.", "pianola");
  app.set_version_flag("--version", fmt::format("pianola {}", version()));
  app.footer(std::string(kFooter));
  app.require_subcommand(0, 1);
  app.get_formatter()->column_width(24);
  add_demo(app, chosen, command_line);
  add_train(app, chosen, command_line);
  add_info(app, chosen);
  add_schedule(app, chosen);
  add_audit(app, chosen);
  add_verify(app, chosen);
  add_memory(app, chosen);
  add_config(app, chosen);
  add_profile(app, chosen);
  add_decide(app, chosen);
  add_compare(app, chosen);
  add_bench(app, chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return report_parse_result(app, error);
  } catch (const std::exception& error) {  // Of what looks at an option's value.
    complain(with_place(error.what(), command_line));
    return kUsage;
  }
  if (chosen) return run(chosen, command_line);
  return run(
      [&] {
        fmt::print("{}", app.help());
        return kSuccess;
      },
      command_line);
}

}  // namespace
}  // namespace pianola::program

int main(int argc, char** argv) {
  using namespace pianola::program;
  if (is_for_python(argc, argv)) return run_in_python(argc, argv);
  return is_about_export(argc, argv) ? read_exports_in_python(argc, argv) : parse_and_run(argc, argv);
}
