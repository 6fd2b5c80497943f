#include <apps/commands.hpp>
#include <apps/python_command.hpp>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace pianola::program {
namespace {

constexpr std::array<std::string_view, 2> kCommands = {"audit", "verify"};

bool names_script(std::string_view argument) { return argument.substr(0, argument.find(':')).ends_with(".py"); }

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// In a build tree the package lies beside the program; an installed one is found by the interpreter.
std::filesystem::path package_of_build_tree() {
  std::error_code unknown;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", unknown);
  const std::filesystem::path folder = program.parent_path().parent_path() / "python";
  return std::filesystem::exists(folder / "pianola" / "__init__.py", unknown) ? folder : std::filesystem::path();
}

std::string interpreter(bool in_build_tree) {
  if (std::string chosen = variable("PIANOLA_PYTHON"); !chosen.empty()) return chosen;
  std::error_code unknown;
  return in_build_tree && std::filesystem::exists(PIANOLA_BUILD_PYTHON, unknown) ? PIANOLA_BUILD_PYTHON : "python3";
}

}  // namespace

bool is_for_python(int argc, char** argv) {
  const std::span<char*> words(argv, static_cast<std::size_t>(argc));
  if (words.size() < 3 || std::find(kCommands.begin(), kCommands.end(), words[1]) == kCommands.end()) return false;
  return std::any_of(words.begin() + 2, words.end(), names_script);
}

int run_in_python(int argc, char** argv) {
  const std::filesystem::path package = package_of_build_tree();
  if (!package.empty()) {
    const std::string others = variable("PYTHONPATH");
    (void)::setenv("PYTHONPATH", (package.string() + (others.empty() ? "" : ":" + others)).c_str(), 1);
  }
  std::string python = interpreter(!package.empty()), option = "-m", module = "pianola";
  std::vector<char*> words = {python.data(), option.data(), module.data()};
  words.insert(words.end(), argv + 1, argv + argc);
  words.push_back(nullptr);
  (void)::execvp(words.front(), words.data());
  const std::string reason = std::generic_category().message(errno);
  (void)std::fputs(fmt::format("pianola: cannot start '{}', which functions of Python files need: {}\n"
                               "  fix:   set PIANOLA_PYTHON to an interpreter that has torch and Pianola\n",
                               python, reason)
                       .c_str(),
                   stderr);
  return kFailure;
}

}  // namespace pianola::program
