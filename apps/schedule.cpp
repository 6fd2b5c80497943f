#include <apps/commands.hpp>

#include <pianola/schedule/schedule.hpp>
#include <pianola/schedule/schedule_drawing.hpp>

#include <fmt/format.h>
#include <CLI/App.hpp>

#include <memory>
#include <string>

namespace pianola::program {
namespace {

struct ScheduleArguments {
  std::string order;
  bool gpipe = false;
  bool one_f_one_b = false;
  bool interleaved = false;
  PipelineShape shape;
  ScheduleOptions options;
  bool as_json = false;
};

Schedule schedule_of(const ScheduleArguments& arguments) {
  if (arguments.gpipe) return Schedule::gpipe(arguments.shape, arguments.options);
  if (arguments.one_f_one_b) return Schedule::one_f_one_b(arguments.shape, arguments.options);
  if (arguments.interleaved) return Schedule::interleaved(arguments.shape, arguments.options);
  return Schedule::parse(arguments.order, arguments.options);
}

constexpr const char* kSizes[] = {"--pipeline", "--virtual", "--microbatches", "--rank"};

// An order that is empty or wrong is the library's to refuse: here it only matters whether there is one.
void check(const CLI::App& command) {
  const auto count = [&](const std::string& name) { return command.get_option(name)->count() > 0 ? 1 : 0; };
  const int named = count("--gpipe") + count("--1f1b") + count("--interleaved");
  if (named + count("order") == 0) throw CLI::ValidationError("Give an order, --gpipe, --1f1b or --interleaved");
  if (named + count("order") > 1) {
    throw CLI::ValidationError("An order, --gpipe, --1f1b and --interleaved exclude each other");
  }
  for (const char* size : kSizes) {
    if (count("order") && count(size)) {
      throw CLI::ValidationError(fmt::format("{} goes with --gpipe, --1f1b or --interleaved, not with an order", size));
    }
  }
}

void add_options(CLI::App& command, ScheduleArguments& arguments) {
  command.add_option(
      "order", arguments.order,
      "Steps such as 1,2,-2,-1: forward (c), backward (-c), delayed gradients of weights (-c-0.5) of chunk c");
  command.add_flag("--gpipe", arguments.gpipe, "All forwards, then all backwards");
  command.add_flag("--1f1b", arguments.one_f_one_b, "Forward and backward in turn");
  command.add_flag("--interleaved", arguments.interleaved, "The same with several chunks on each rank");
  PipelineShape& shape = arguments.shape;
  command.add_option(kSizes[0], shape.pipeline_size, "Ranks of the pipeline")->capture_default_str();
  command.add_option(kSizes[1], shape.virtual_size, "Chunks on each rank")->capture_default_str();
  command.add_option(kSizes[2], shape.microbatches, "Microbatches per training step")->capture_default_str();
  command.add_option(kSizes[3], shape.rank, "Whose part to show, from 0")->capture_default_str();
  command.add_option("--layers", arguments.options.layers_per_chunk, "Layers per chunk: one number, or one for each")
      ->type_name("N")
      ->delimiter(',')
      ->allow_extra_args(false);  // what follows is the order
  command.add_flag("--json", arguments.as_json, "Print JSON");
}

int print(const ScheduleArguments& arguments) {
  const Schedule schedule = schedule_of(arguments);
  fmt::print("{}", arguments.as_json ? schedule_report(schedule).to_json() + "\n" : describe(schedule));
  return kSuccess;
}

}  // namespace

void add_schedule(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("schedule", "Check a pipeline schedule, draw it and count its buffers");
  auto arguments = std::make_shared<ScheduleArguments>();
  add_options(*command, *arguments);
  command->callback([arguments, command, &chosen] {
    check(*command);
    chosen = [arguments] { return print(*arguments); };
  });
}

}  // namespace pianola::program
