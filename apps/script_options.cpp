#include <apps/script_options.hpp>

#include <apps/script_module.hpp>

#include <pianola/core/error.hpp>

#include <fmt/format.h>
#include <CLI/App.hpp>

#include <fstream>

namespace pianola::program {
namespace {

// Of the words of the library, what fits a line.
std::string trouble_with_shape(const std::string& text) {
  try {
    (void)InputShape::parse(text);
    return "";
  } catch (const UsageError& error) {
    return fmt::format("{}: {}", error.diagnosis().what, error.diagnosis().fix);
  }
}

}  // namespace

void add_script_options(CLI::App& command, ScriptOptions& options) {
  command
      .add_option("STEP", options.file,
                  "Function FILE.py:FUNCTION or MODULE:FUNCTION, or a file that torch.jit.save() wrote")
      ->required()
      ->type_name("");
  command
      .add_option("--input", options.inputs,
                  "Shape of an argument: 8x16, 8x16:float16, 8x16:int64<100; once for each argument")
      ->type_name("SHAPE")
      ->check(CLI::Validator(trouble_with_shape, ""))
      ->allow_extra_args(false)
      ->group(kOfTorchScript);
  command.add_option("--device", options.device, "auto, cpu or cuda: where the step runs")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  command.add_flag("--train", options.train, "In training mode, with the backward pass of the sum of the results")
      ->group(kOfTorchScript);
  command.add_option("--json", options.json, "Write JSON to this file; - prints it in place of the text")
      ->type_name("FILE");
}

std::string about_python_steps(const std::string& function, const std::string& beside) {
  return fmt::format(
      "A Python file is run as a module: its `if __name__ == \"__main__\"` part is not. These names beside the "
      "function\n"
      "count as arguments of {}: {}.\nA function make_... is called first: it returns the step, or the step and a dict "
      "of "
      "such arguments.\n\n",
      function, beside);
}

void write_file(const std::filesystem::path& file, const std::string& contents) {
  std::ofstream out(file);
  out << contents << '\n';
  out.close();
  if (!out) throw UsageError({.what = fmt::format("cannot write '{}'", file.string())});
}

void print_report(const ScriptOptions& options, const std::string& text, const std::string& json) {
  fmt::print("{}", options.json == "-" ? json + "\n" : text);
  if (!options.json.empty() && options.json != "-") write_file(options.json, json);
}

}  // namespace pianola::program
