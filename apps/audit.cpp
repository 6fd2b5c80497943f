#include <apps/commands.hpp>
#include <apps/machine.hpp>
#include <apps/script_module.hpp>
#include <apps/script_options.hpp>

#include <pianola/audit/audit.hpp>

#include <fmt/format.h>
#include <CLI/App.hpp>

#include <memory>
#include <string>

namespace pianola::program {
namespace {

struct AuditArguments {
  ScriptOptions script;
  std::string sarif;
  AuditOptions options;
};

int run(const AuditArguments& arguments) {
  const c10::Device device = chosen_device(arguments.script.device);
  ScriptModule module(arguments.script.file, device, arguments.script.train);
  const std::vector<at::Tensor> inputs = module.make_inputs(arguments.script.inputs);
  AuditOptions options = arguments.options;
  options.names = module.state();
  options.device = device;
  options.subject = module.name();
  AuditReport report =
      audit([&](const std::vector<at::Tensor>& batch) { return module.run(batch); }, {inputs}, options);
  print_report(arguments.script, report.to_text(), report.to_json());
  if (!arguments.sarif.empty()) write_file(arguments.sarif, report.to_sarif());
  return report.exit_code();
}

}  // namespace

void add_audit(CLI::App& app, Command& chosen) {
  CLI::App* command =
      app.add_subcommand("audit", "Find what would break a graph of FILE.py:FUNCTION or of a TorchScript module");
  auto arguments = std::make_shared<AuditArguments>();
  add_script_options(*command, arguments->script);
  command->add_option("--sarif", arguments->sarif, "Write SARIF to this file, for editors and code hosts")
      ->type_name("FILE");
  AuditOptions& options = arguments->options;
  options.warmup = 3;  // until TorchScript's executor has settled
  command->add_option("--iterations", options.iterations, "Runs that are compared")
      ->check(CLI::Range(2, 1000))
      ->capture_default_str();
  command->add_option("--warmup", options.warmup, "Runs before, which are not: by default 3, of Python functions 1")
      ->check(CLI::Range(0, 1000));
  command->add_option("--capture-warmup", options.capture_warmup, "Warm-up runs that the capture is going to have")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  command->add_flag_callback(
      "--no-trial", [arguments] { arguments->options.trial = false; }, "Do not try a capture afterwards");
  command->add_flag_callback(
      "--no-sources", [arguments] { arguments->options.sources = false; },
      "Do not look for source lines, which is faster");
  command->footer(
      about_python_steps("pianola.audit",
                         "batches (what it is called with, in turn), between (called between "
                         "two runs), generators, callables") +
      "Exit codes: 0 nothing breaks a capture or its numbers, 1 the step fails, 2 the command line is wrong, "
      "3 hazards were found.");
  command->callback([arguments, &chosen] { chosen = [arguments] { return run(*arguments); }; });
}

}  // namespace pianola::program
