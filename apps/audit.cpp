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

struct Arguments {
  ScriptOptions script;
  std::string sarif;
  int iterations = 3;
  bool no_trial = false;
};

int run(const Arguments& arguments) {
  const c10::Device device = chosen_device(arguments.script.device);
  ScriptModule module(arguments.script.file, device, arguments.script.train);
  std::vector<InputShape> shapes;
  for (const std::string& text : arguments.script.inputs) shapes.push_back(InputShape::parse(text));
  const std::vector<at::Tensor> inputs = module.make_inputs(shapes);
  AuditReport report = audit([&](const std::vector<at::Tensor>& batch) { return module.run(batch); }, {inputs},
                             {.iterations = arguments.iterations,
                              .warmup = 3,  // until TorchScript's executor has settled
                              .trial = !arguments.no_trial,
                              .names = module.state(),
                              .device = device,
                              .subject = module.name()});
  print_report(arguments.script, report.to_text(), report.to_json());
  if (!arguments.sarif.empty()) write_file(arguments.sarif, report.to_sarif());
  return report.exit_code();
}

}  // namespace

void add_audit(CLI::App& app, Command& chosen) {
  CLI::App* command =
      app.add_subcommand("audit", "Find what would break a graph of FILE.py:FUNCTION or of a TorchScript module");
  auto arguments = std::make_shared<Arguments>();
  add_script_options(*command, arguments->script);
  command->add_option("--sarif", arguments->sarif, "Write SARIF to this file, for editors and code hosts")
      ->type_name("FILE");
  command->add_option("--iterations", arguments->iterations, "Runs that are compared")
      ->check(CLI::Range(2, 1000))
      ->capture_default_str();
  command->add_flag("--no-trial", arguments->no_trial, "Do not try a capture afterwards");
  command->callback([arguments, &chosen] { chosen = [arguments] { return run(*arguments); }; });
}

}  // namespace pianola::program
