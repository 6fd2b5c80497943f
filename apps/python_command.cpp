#include <apps/commands.hpp>
#include <apps/python_command.hpp>

#include <pianola/profile/read/sqlite_magic.hpp>

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
constexpr std::array<std::string_view, 5> kCommands = {"audit", "verify", "memory", "profile", "decide"};
// Those of a file, which has to say of which function.
constexpr std::array<std::string_view, 3> kOfFiles = {"audit", "verify", "memory"};
// Options without a value.
constexpr std::array<std::string_view, 3> kFlags = {"--try", "--capture", "--scopes"};

bool is_dotted_name(std::string_view text) {
  const auto is_letter = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.'; };
  return !text.empty() && (std::isalpha(static_cast<unsigned char>(text[0])) != 0 || text[0] == '_') &&
         std::all_of(text.begin(), text.end(), is_letter);
}

// "file.py:function" or "module:function". A file may have the form of the latter, and the value of an option.
bool names_function(std::string_view command, std::string_view before, std::string_view word) {
  const std::size_t colon = word.find(':');
  const bool has_function = colon != std::string_view::npos;
  if (word.substr(0, colon).ends_with(".py"))
    return has_function || std::find(kOfFiles.begin(), kOfFiles.end(), command) != kOfFiles.end();
  const bool is_value = before.starts_with("--") && !before.starts_with("--no-") &&
                        std::find(kFlags.begin(), kFlags.end(), before) == kFlags.end();
  std::error_code unknown;
  return has_function && is_dotted_name(word.substr(0, colon)) && is_dotted_name(word.substr(colon + 1)) && !is_value &&
         !std::filesystem::exists(word, unknown);
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::filesystem::path own_path() {
  std::error_code unknown;
  return std::filesystem::read_symlink("/proc/self/exe", unknown);
}

// A file that Nsight Systems exported, or that has such a name; not the value of an option.
bool names_export(std::string_view before, std::string_view word) {
  std::error_code unknown;
  const std::filesystem::path file(word);
  return !before.starts_with("--") &&
         (profiling::is_sqlite(file) || (file.extension() == ".sqlite" && std::filesystem::exists(file, unknown)));
}

// The script that turns such files into traces: in a build tree and an installation, and in a Python package.
std::filesystem::path export_reader() {
  const std::filesystem::path above = own_path().parent_path().parent_path();
  std::error_code unknown;
  for (const char* const place : {"share/pianola/nsight.py", "_nsight.py"}) {
    if (std::filesystem::exists(above / place, unknown)) return above / place;
  }
  return {};
}

// In a build tree the package lies beside the program; an installed one is found by the interpreter.
std::filesystem::path package_of_build_tree() {
  std::error_code unknown;
  const std::filesystem::path folder = own_path().parent_path().parent_path() / "python";
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
  for (auto word = words.begin() + 1; word < end; ++word) {
    const std::string_view before = *(word - 1);
    if (names_function(words[0], before, *word)) return true;
    const bool is_program = words[0] == "profile" && !before.starts_with("--") && !word->starts_with("-");
    if (is_program) return false;  // its words follow
  }
  return false;
}

bool is_about_export(int argc, char** argv) {
  const std::vector<std::string_view> words(argv + std::min(argc, 1), argv + argc);
  if (words.empty() || (words[0] != "decide" && words[0] != "compare")) return false;
  return std::adjacent_find(words.begin(), words.end(), names_export) != words.end() && !export_reader().empty();
}

namespace {

// Comes back where the interpreter cannot be started.
int become(std::vector<std::string> command, int argc, char** argv, std::string_view needed_by, std::string_view has) {
  std::vector<char*> words;
  for (std::string& word : command) words.push_back(word.data());
  words.insert(words.end(), argv + 1, argv + argc);
  words.push_back(nullptr);
  (void)::execvp(words.front(), words.data());
  const std::string reason = std::generic_category().message(errno);
  (void)std::fputs(fmt::format("pianola: cannot start '{}', which {}: {}\n"
                               "  fix:   set PIANOLA_PYTHON to an interpreter that {}\n",
                               command.front(), needed_by, reason, has)
                       .c_str(),
                   stderr);
  return kFailure;
}

}  // namespace

int run_in_python(int argc, char** argv) {
  const std::filesystem::path package = package_of_build_tree();
  if (!package.empty()) {
    const std::string others = variable("PYTHONPATH");
    (void)::setenv("PYTHONPATH", (package.string() + (others.empty() ? "" : ":" + others)).c_str(), 1);
  }
  return become({interpreter(!package.empty()), "-m", "pianola"}, argc, argv, "functions of Python files need",
                "has torch and Pianola");
}

int read_exports_in_python(int argc, char** argv) {
  const bool in_build_tree = !package_of_build_tree().empty();
  return become({interpreter(in_build_tree), export_reader().string(), own_path().string()}, argc, argv,
                "exports of Nsight Systems need", "has sqlite3");
}

}  // namespace pianola::program
