#include <apps/commands.hpp>
#include <apps/demo/experiment.hpp>
#include <apps/demo/sampling.hpp>
#include <apps/demo/text.hpp>
#include <apps/machine.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/report.hpp>

#include <ATen/Parallel.h>

#include <fmt/format.h>
#include <CLI/App.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace pianola::program {
namespace {

using demo::Experiment;
using demo::Progress;
using demo::Text;
using demo::TrainerConfig;
using nlohmann::ordered_json;

struct DemoOptions {
  std::string device = "auto";
  std::string text = {};   // empty: the first of demo::default_text()
  std::int64_t steps = 0;  // 0: as many as suit the device
  std::uint64_t seed = 1;
  int threads = 1;
  int branches = 0;
  std::string lanes = {};
  std::string json = {};
  std::string command_line = {};
};

// Sizes at which the training shows something in about half a minute.
TrainerConfig config_for(c10::Device device, const Text& text, const DemoOptions& options) {
  TrainerConfig config{
      .model = {.vocabulary = text.vocabulary(), .layers = 3, .width = 64, .heads = 4, .context = 32, .dropout = 0.05},
      .batch = 16,
      .steps = 1200,
      .peak_learning_rate = 8e-3,
      .seed = options.seed};
  if (device.is_cuda()) {
    config.model = {
        .vocabulary = text.vocabulary(), .layers = 6, .width = 192, .heads = 6, .context = 128, .dropout = 0.1};
    config.steps = 2000;
    config.peak_learning_rate = 2e-3;
  }
  if (options.steps > 0) config.steps = options.steps;
  return config;
}

// Opened before the training, so that a bad path is refused before the work is done.
std::optional<std::ofstream> open_for(const char* option, const std::string& path) {
  if (path.empty()) return std::nullopt;
  std::ofstream file(path);
  if (!file) {
    throw UsageError({.what = fmt::format("cannot write '{}'", path),
                      .fix = fmt::format("give {} a file that can be written", option)});
  }
  return file;
}

Report describe(const TrainerConfig& config, c10::Device device, const std::filesystem::path& file, const Text& text,
                std::int64_t parameters) {
  const auto& model = config.model;
  Report report("The same training twice: eager, then by replaying one graph");
  const std::string threads =
      device.is_cpu() ? fmt::format(", {} thread{}", at::get_num_threads(), at::get_num_threads() == 1 ? "" : "s") : "";
  report.fact("device", "device", fmt::format("{} ({}{})", device.str(), device_name(device), threads))
      .fact("text", "text",
            fmt::format("{}: {} characters, {} distinct", file.string(), text.size(), text.vocabulary()))
      .fact("model", "model",
            fmt::format("GPT: {} layers, width {}, {} heads, context {}, dropout {}; {} parameters", model.layers,
                        model.width, model.heads, model.context, model.dropout, parameters))
      .fact("step", "step",
            fmt::format("forward, loss, backward, clipping, AdamW on {} x {} characters; {} steps after {} of warm-up",
                        config.batch, model.context, config.steps, Experiment::kWarmup));
  return report;
}

// A line for each report, so that it reads on any terminal and in a log; the bar shows the loss falling.
void print_progress(std::string_view run, const Progress& progress, const TrainerConfig& config) {
  constexpr double kBarWidth = 30;
  const double of_a_guess = std::log(static_cast<double>(std::max<std::int64_t>(config.model.vocabulary, 2)));
  const double share = std::clamp(progress.loss / of_a_guess, 0.0, 1.0);
  const std::string bar(static_cast<std::size_t>(std::lround(share * kBarWidth)), '#');
  fmt::print("  {:<6}  step {:>{}}/{}  loss {:.3f}  {:<30}  {:8.1f} steps/s\n", run, progress.done,
             fmt::formatted_size("{}", config.steps), config.steps, progress.loss, bar, progress.steps_per_second);
  std::fflush(stdout);
}

void print_capture(const GraphInfo& graph) {
  const double milliseconds = static_cast<double>((graph.capture_time + graph.instantiate_time).count()) / 1000;
  fmt::print("  captured one step, {} nodes, in {:.1f} ms; the capture left no trace in the model\n", graph.nodes,
             milliseconds);
}

// "302 us -> 212 us", by the clock where both graphs were timed, else by the model.
std::string gain(const BranchInfo& branches) {
  const bool timed = branches.serial_us > 0 && branches.rebuilt_us > 0;
  return fmt::format("{}{:.0f} us -> {:.0f} us", timed ? "" : "modelled ",
                     timed ? branches.serial_us : branches.modelled_serial_us,
                     timed ? branches.rebuilt_us : branches.modelled_rebuilt_us);
}

void print_branches(const GraphInfo& graph) {
  if (!graph.branches) return;
  const BranchInfo& branches = *graph.branches;
  if (branches.rebuilt) {
    fmt::print("  branches: rebuilt, {} lanes, {}\n", branches.lanes, gain(branches));
  } else {
    fmt::print("  branches: replayed as captured: {}\n", branches.reason);
    if (branches.lanes > 1) fmt::print("  the plan has {} lanes, {}\n", branches.lanes, gain(branches));
  }
  for (const std::string& warning : branches.warnings) fmt::print("  branches: {}\n", warning);
}

// Memory in which steps work: for eager what torch had allocated at most, for replay what the graph holds.
ReportValue working_bytes(const demo::RunFigures& run) {
  if (!run.working_bytes) return {};
  return *run.working_bytes;
}

Report describe(const Experiment& experiment) {
  Report report;
  ReportTable runs("runs", "",
                   {{"run"},
                    {"steps_per_s", "steps/s", "", 1},
                    {"host_us_per_step", "host/step", "us", 1},
                    {"wall_s", "wall", "s", 2},
                    {"speed_up", "speed-up", "", 2},
                    {"final_loss", "loss", "", 4},
                    {"nodes"},
                    {"working_bytes", "memory", "bytes"}});
  const demo::RunFigures& eager = experiment.eager();
  const demo::RunFigures& replay = experiment.replay();
  const GraphInfo& graph = experiment.graph();
  runs.row({"eager",
            eager.steps_per_second,
            eager.host_us_per_step,
            eager.wall_seconds,
            1.0,
            eager.last_loss,
            {},
            working_bytes(eager)});
  runs.row({"replay", replay.steps_per_second, replay.host_us_per_step, replay.wall_seconds,
            eager.wall_seconds / replay.wall_seconds, replay.last_loss, graph.nodes,
            graph.pool_bytes + graph.executable_bytes});
  report.table(std::move(runs));
  return report;
}

void print_comparison(const demo::Comparison& comparison, std::int64_t steps) {
  if (!comparison.equal()) return;
  fmt::print(
      "bit-equal: {} tensors with {} values, by torch.equal: {} losses, all parameters, moments and step\n"
      "counters, the learning rate, the state of the random generator\n",
      comparison.tensors, comparison.values, steps);
}

// With a bar at the left, and long lines broken at a blank.
std::string indented(const std::string& text) {
  constexpr std::size_t kWidth = 92;
  constexpr std::string_view kBar = "  | ";
  std::string result(kBar);
  std::size_t column = 0;
  for (const char c : text) {
    const bool breaks = c == '\n' || (c == ' ' && column >= kWidth);
    column = breaks ? 0 : column + 1;
    if (breaks) {
      result += '\n';
      result += kBar;
    } else {
      result += c;
    }
  }
  return result;
}

ordered_json to_json(const TrainerConfig& config) {
  return {{"layers", config.model.layers},
          {"width", config.model.width},
          {"heads", config.model.heads},
          {"context", config.model.context},
          {"dropout", config.model.dropout},
          {"vocabulary", config.model.vocabulary},
          {"batch", config.batch},
          {"steps", config.steps},
          {"seed", config.seed},
          {"peak_learning_rate", config.peak_learning_rate}};
}

ordered_json to_json(const Experiment& experiment, const DemoOptions& options, const TrainerConfig& config,
                     const Report& what, const Report& figures, const std::string& sample) {
  const demo::Comparison& comparison = experiment.comparison();
  ordered_json json;
  json["command"] = options.command_line;
  json["machine"] = ordered_json::parse(machine_report().to_json());
  json["training"] = ordered_json::parse(what.to_json());
  json["config"] = to_json(config);
  json["runs"] = ordered_json::parse(figures.to_json())["runs"];
  json["graph"] = ordered_json::parse(experiment.graph().report().to_json());
  json["iteration"] = ordered_json::parse(experiment.iteration().report().to_json());
  json["comparison"] = {{"equal", comparison.equal()},
                        {"tensors", comparison.tensors},
                        {"values", comparison.values},
                        {"unequal", comparison.unequal},
                        {"first_difference", comparison.equal() ? ordered_json() : ordered_json(comparison.first)}};
  json["losses"] = {{"eager", experiment.eager_losses()}, {"replay", experiment.replay_losses()}};
  json["sample"] = sample;
  return json;
}

void write(std::ofstream& file, const ordered_json& json, const std::string& path) {
  // A sample may end amid a character of several bytes: what is not UTF-8 is replaced.
  file << json.dump(2, ' ', false, ordered_json::error_handler_t::replace) << "\n";
  if (!file.flush()) throw Error({.what = fmt::format("could not write all of '{}': is the disk full?", path)});
}

Experiment::Watcher progress_printer(const TrainerConfig& config, const std::string& lanes) {
  return {.eager = [&config](const Progress& progress) { print_progress("eager", progress, config); },
          .inspected =
              [&lanes](const Graph& graph) {
                if (!lanes.empty()) graph.dump_lanes(lanes);
              },
          .captured =
              [](const GraphInfo& graph) {
                print_capture(graph);
                print_branches(graph);
              },
          .replay = [&config](const Progress& progress) { print_progress("replay", progress, config); }};
}

int run_demo(const DemoOptions& options) {
  if (!options.lanes.empty() && options.branches < 2) {
    throw UsageError({.what = "--lanes draws parallel branches, and none were asked for", .fix = "add --branches 4"});
  }
  const c10::Device device = chosen_device(options.device);
  // One thread by default: at these sizes two threads gain nothing over one, and lose much on a busy machine.
  if (device.is_cpu()) at::set_num_threads(options.threads);
  const std::filesystem::path file = options.text.empty() ? demo::default_text() : std::filesystem::path(options.text);
  const Text text = Text::read(file);
  const TrainerConfig config = config_for(device, text, options);
  Experiment experiment(text, config, device, options.branches);
  std::optional<std::ofstream> json = open_for("--json", options.json);
  open_for("--lanes", options.lanes).reset();
  const Report what = describe(config, device, file, text, demo::CharGpt(config.model, device).parameter_count());
  fmt::print("{}\n", what.to_text());
  experiment.run(progress_printer(config, options.lanes));
  const Report figures = describe(experiment);
  fmt::print("\n{}\n", figures.to_text());
  print_comparison(experiment.comparison(), config.steps);
  const std::string sample = demo::sample(experiment.model(), text, "  The ", {.seed = options.seed});
  fmt::print("\nwritten by the trained model:\n{}\n", indented(sample));
  if (json) write(*json, to_json(experiment, options, config, what, figures, sample), options.json);
  if (experiment.comparison().equal()) return kSuccess;
  throw Error({.what = fmt::format("eager and replay differ in {} of {} tensors", experiment.comparison().unequal,
                                   experiment.comparison().tensors),
               .where = experiment.comparison().first});
}

}  // namespace

void add_demo(CLI::App& app, Command& chosen, const std::string& command_line) {
  CLI::App* demo = app.add_subcommand("demo", "Train a small GPT eagerly and by graph replay, and compare");
  auto options = std::make_shared<DemoOptions>(DemoOptions{.command_line = command_line});
  demo->add_option("--device", options->device, "Where to train; auto takes a GPU where there is one")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->type_name("NAME")
      ->capture_default_str();
  demo->add_option("--text", options->text, "Text to learn; left out, a licence text of this machine")
      ->type_name("FILE");
  demo->add_option("--steps", options->steps, "Training steps; left out, as many as suit the device")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{10'000'000}).description(""))
      ->type_name("N");
  demo->add_option("--seed", options->seed, "Seed of weights, batches and dropout")
      ->type_name("N")
      ->capture_default_str();
  demo->add_option("--threads", options->threads, "Threads of an operation on the CPU; more do not help at this size")
      ->check(CLI::Range(1, 1024).description(""))
      ->type_name("N")
      ->capture_default_str();
  demo->add_option("--branches", options->branches,
                   "Let the graph run on so many parallel lanes what is independent; 0: as captured")
      ->check(CLI::Range(0, 8).description(""))
      ->type_name("N")
      ->capture_default_str();
  demo->add_option("--lanes", options->lanes, "Draw the lanes of --branches to this file, as SVG")->type_name("FILE");
  demo->add_option("--json", options->json, "Write all figures and losses to this file")->type_name("FILE");
  demo->callback([options, &chosen] { chosen = [options] { return run_demo(*options); }; });
}

}  // namespace pianola::program
