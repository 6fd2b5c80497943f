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
  command.add_option("module", options.file, "File that torch.jit.save() wrote")->required()->type_name("FILE");
  command
      .add_option("--input", options.inputs,
                  "Shape of an argument: 8x16, 8x16:float16, 8x16:int64<100; once for each argument")
      ->type_name("SHAPE")
      ->check(CLI::Validator(trouble_with_shape, ""))
      ->allow_extra_args(false);
  command.add_option("--device", options.device, "auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  command.add_flag("--train", options.train, "In training mode, with the backward pass of the sum of the results");
  command.add_option("--json", options.json, "Write JSON to this file; - prints it in place of the text")
      ->type_name("FILE");
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
