#include <apps/commands.hpp>
#include <apps/machine.hpp>
#include <apps/script_module.hpp>
#include <apps/script_options.hpp>

#include <pianola/graph/account/captured_memory.hpp>
#include <pianola/graph/account/memory_watch.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/graph/scope_forecast.hpp>

#include <CLI/App.hpp>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace pianola::program {
namespace {

struct MemoryArguments {
  ScriptOptions script;
  int warmup = 1;
  bool capture = false;
  bool scopes = false;
  std::filesystem::path html;
};

// Of a graph of its own.
int run_captured(const MemoryArguments& arguments) {
  const c10::Device device = chosen_device(arguments.script.device);
  const MemoryWatch watch(device);
  ScriptModule module(arguments.script.file, device, arguments.script.train);
  const std::vector<at::Tensor> inputs = module.make_inputs(arguments.script.inputs);
  module.settle(inputs);
  CapturedMemory memory;
  memory.forecast = predict_memory([&] { (void)module.run(inputs); }, device, arguments.warmup);
  Graph graph(device);
  graph.capture([&] { (void)module.run(inputs); }, {.warmup = 1, .inputs = inputs});
  graph.replay();
  memory.graph = graph.memory();
  memory.process = process_memory(device);
  if (!arguments.html.empty()) write_file(arguments.html, memory.to_html());
  const Report report = memory.report();
  print_report(arguments.script, report.to_text(), report.to_json());
  return kSuccess;
}

// What graphs of each scope would take.
int run_scopes(const MemoryArguments& arguments) {
  const c10::Device device = chosen_device(arguments.script.device);
  ScriptModule module(arguments.script.file, device, arguments.script.train);
  const std::vector<at::Tensor> inputs = module.make_inputs(arguments.script.inputs);
  module.settle(inputs);
  const ScopeForecast forecast =
      predict_scopes([&] { (void)module.run(inputs); }, device, {.warmup = arguments.warmup, .inputs = inputs});
  const Report report = forecast.report();
  print_report(arguments.script, report.to_text(), report.to_json());
  return kSuccess;
}

int run(const MemoryArguments& arguments) {
  if (arguments.capture) return run_captured(arguments);
  if (arguments.scopes) return run_scopes(arguments);
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
  auto arguments = std::make_shared<MemoryArguments>();
  add_script_options(*command, arguments->script);
  command->add_option("--warmup", arguments->warmup, "Runs before the one that is looked at")
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str();
  CLI::Option* capture =
      command->add_flag("--capture", arguments->capture,
                        "Capture it, and show what its graph has, and who has what of the device beside it");
  CLI::Option* html = command->add_option("--html", arguments->html, "Write a page with the picture: who lives when");
  html->type_name("FILE");
  command
      ->add_flag("--scopes", arguments->scopes,
                 "Tell it for graphs of each scope (layers, forward and backward, iteration), and what lanes may add")
      ->excludes(capture)
      ->excludes(html);
  command->footer(about_python_steps("pianola.predict_memory", "batches") +
                  "Exit codes: 0 told, 1 the step fails, 2 the command line is wrong.");
  command->callback([arguments, &chosen] { chosen = [arguments] { return run(*arguments); }; });
}

}  // namespace pianola::program
