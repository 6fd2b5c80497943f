#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace pianola::program {

/// Of the options that functions of Python have no use for.
inline constexpr const char* kOfTorchScript = "Options of TorchScript files";

/// What `pianola audit` and `pianola verify` are told alike.
struct ScriptOptions {
  std::filesystem::path file;
  std::vector<std::string> inputs;
  std::string device = "auto";
  bool train = false;
  std::string json;  ///< File for the report, "-" for the terminal; empty: none.
};

void add_script_options(CLI::App& command, ScriptOptions& options);

/// How functions of Python are found, for the end of a command's help.
/// @param beside  Names that count as arguments of `function` where they stand beside the step: "batches, between".
std::string about_python_steps(const std::string& function, const std::string& beside);

/// Prints `text`, or `json` in its place where "-" was said; writes `json` to the file that was named.
/// @throws UsageError  The file cannot be written.
void print_report(const ScriptOptions& options, const std::string& text, const std::string& json);

/// @throws UsageError  The file cannot be written.
void write_file(const std::filesystem::path& file, const std::string& contents);

}  // namespace pianola::program
