#include <apps/commands.hpp>
#include <apps/machine.hpp>
#include <apps/script_module.hpp>
#include <apps/script_options.hpp>

#include <pianola/graph/graph.hpp>
#include <pianola/verify/verify.hpp>

#include <fmt/format.h>
#include <CLI/App.hpp>

#include <memory>
#include <string>

namespace pianola::program {
namespace {

struct VerifyArguments {
  ScriptOptions script;
  VerifyOptions options;
};

int run(const VerifyArguments& arguments) {
  const c10::Device device = chosen_device(arguments.script.device);
  ScriptModule module(arguments.script.file, device, arguments.script.train);
  const std::vector<at::Tensor> inputs = module.make_inputs(arguments.script.inputs);
  module.settle(inputs);

  const std::vector<at::Tensor> static_inputs = module.make_inputs(arguments.script.inputs);
  std::vector<at::Tensor> results;
  Graph graph(device);
  graph.capture([&] { results = module.run(static_inputs); }, {.inputs = static_inputs});
  VerifyOptions options = arguments.options;
  options.inputs = {inputs};
  options.subject = module.name();
  const VerifyReport report = verify([&](const auto& batch) { return module.run(batch); },
                                     [&](const auto& batch) {
                                       graph.replay(batch);
                                       return results;
                                     },
                                     module.state(), options);
  print_report(arguments.script, report.to_text(), report.to_json());
  return report.exit_code();
}

}  // namespace

void add_verify(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand(
      "verify", "Prove that a graph of FILE.py:FUNCTION or of a TorchScript module computes what eager does");
  auto arguments = std::make_shared<VerifyArguments>();
  add_script_options(*command, arguments->script);
  command->get_option("--device")->group(kOfTorchScript);
  command->add_option("--steps", arguments->options.steps, "Steps of each side")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  command->add_flag_callback(
      "--no-narrow", [arguments] { arguments->options.narrow = false; },
      "Do not look for the operation where a difference starts");
  command->add_flag_callback(
      "--no-poison", [arguments] { arguments->options.poison = false; }, "Leave memory that nothing holds as it is");
  command->footer(
      about_python_steps("pianola.verify",
                         "graphed (without it the function is captured with pianola.Graph), "
                         "state,\ninputs, between, reset, generators, tolerance") +
      "Exit codes: 0 equal, 1 a side fails, 2 the command line is wrong, 3 different or not deterministic.");
  command->callback([arguments, &chosen] { chosen = [arguments] { return run(*arguments); }; });
}

}  // namespace pianola::program
