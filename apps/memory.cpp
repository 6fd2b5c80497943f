#include <apps/commands.hpp>
#include <apps/machine.hpp>
#include <apps/script_module.hpp>
#include <apps/script_options.hpp>

#include <pianola/graph/memory_forecast.hpp>

#include <CLI/App.hpp>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace pianola::program {
namespace {

struct Arguments {
  ScriptOptions script;
  int warmup = 1;
  std::filesystem::path html;
};

int run(const Arguments& arguments) {
  const c10::Device device = chosen_device(arguments.script.device);
  ScriptModule module(arguments.script.file, device, arguments.script.train);
  const std::vector<at::Tensor> inputs = module.make_inputs(arguments.script.inputs);
  module.settle(inputs);
  const MemoryForecast forecast = predict_memory([&] { (void)module.run(inputs); }, device, arguments.warmup);
  if (!arguments.html.empty()) write_file(arguments.html, forecast.to_html());
  const Report report = forecast.report();
  print_report(arguments.script, report.to_text(), report.to_json());
  return kSuccess;
}

}  // namespace

void add_memory(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand(
      "memory", "Tell what a graph of FILE.py:FUNCTION or of a TorchScript module would take, before there is one");
  auto arguments = std::make_shared<Arguments>();
  add_script_options(*command, arguments->script);
  command->add_option("--warmup", arguments->warmup, "Runs before the one that is looked at")
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str();
  command->add_option("--html", arguments->html, "Write a page with the picture: who lives when")->type_name("FILE");
  command->footer(about_python_steps("pianola.predict_memory", "batches") +
                  "Exit codes: 0 told, 1 the step fails, 2 the command line is wrong.");
  command->callback([arguments, &chosen] { chosen = [arguments] { return run(*arguments); }; });
}

}  // namespace pianola::program
