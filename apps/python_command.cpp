#include <apps/commands.hpp>
#include <apps/python_command.hpp>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace pianola::program {
namespace {

// As in python/_pianola_program.py.
constexpr std::array<std::string_view, 4> kCommands = {"audit", "verify", "profile", "decide"};

bool is_dotted_name(std::string_view text) {
  const auto is_letter = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.'; };
  return !text.empty() && (std::isalpha(static_cast<unsigned char>(text[0])) != 0 || text[0] == '_') &&
         std::all_of(text.begin(), text.end(), is_letter);
}

// "file.py:function" or "module:function". A file may have the form of the latter, and the value of an option.
bool names_function(std::string_view command, std::string_view before, std::string_view word) {
  const std::size_t colon = word.find(':');
  const bool has_function = colon != std::string_view::npos;
  if (word.substr(0, colon).ends_with(".py")) return has_function || command == "audit" || command == "verify";
  const bool is_value = before.starts_with("--") && !before.starts_with("--no-");
  std::error_code unknown;
  return has_function && is_dotted_name(word.substr(0, colon)) && is_dotted_name(word.substr(colon + 1)) && !is_value &&
         !std::filesystem::exists(word, unknown);
}

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
  const std::vector<std::string_view> words(argv + std::min(argc, 1), argv + argc);
  if (words.empty() || std::find(kCommands.begin(), kCommands.end(), words[0]) == kCommands.end()) return false;
  const auto end = std::find(words.begin(), words.end(), "--");  // behind it is another program's
  const auto is_help = [](std::string_view word) { return word == "-h" || word == "--help"; };
  if (std::any_of(words.begin(), end, is_help)) return false;
  const auto is_function = [&](std::string_view before, std::string_view word) {
    return names_function(words[0], before, word);
  };
  return std::adjacent_find(words.begin(), end, is_function) != end;
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
