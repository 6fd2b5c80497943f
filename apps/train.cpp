#include <apps/commands.hpp>
#include <apps/demo/text.hpp>
#include <apps/machine.hpp>
#include <apps/train/training.hpp>

#include <pianola/config/check.hpp>
#include <pianola/config/field.hpp>
#include <pianola/config/file.hpp>
#include <pianola/core/error.hpp>
#include <pianola/core/report.hpp>

#include <ATen/Parallel.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/App.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace pianola::program {
namespace {

using train::Outcome;
using train::Scope;
using train::TrainingConfig;

struct TrainOptions {
  std::string model = "dense";
  std::string device = "auto";
  std::string impl = {};
  std::vector<std::string> scopes = {};
  std::string config = {};
  double capacity = 0;
  int warmup = 3;
  std::int64_t steps = 50;
  std::uint64_t seed = 1;
  std::string text = {};
  std::string json = {};
  std::string command_line = {};
};

// As Megatron's options say it, checked by its rules.
CudaGraphConfig config_of(const TrainOptions& options, const std::string& impl,
                          const std::vector<std::string>& scopes) {
  CudaGraphConfig config;
  config_field("cuda_graph_impl").set(config, impl);
  config_field("cuda_graph_modules").set(config, scopes);
  config.cuda_graph_warmup_steps = options.warmup;
  if (options.model == "moe") {
    config.num_moe_experts = 4;
    config.moe_layer_freq = {0, 1, 0, 1};
    if (options.capacity > 0) {
      config.moe_expert_capacity_factor = options.capacity;
      config.moe_pad_expert_input_to_capacity = true;
    }
  }
  require_valid(config);
  return check_config(config).config;
}

Scope scope_of(const CudaGraphConfig& config) {
  std::string name = std::get<std::string>(config_field("cuda_graph_impl").get(config));
  const auto parts = std::get<std::vector<std::string>>(config_field("cuda_graph_modules").get(config));
  if (!parts.empty()) {
    name += fmt::format(": {}", fmt::join(parts, ", "));
  } else if (config.cuda_graph_impl != CudaGraphImpl::full_iteration) {
    name += ": whole layers";
  }
  return {.name = std::move(name),
          .impl = config.cuda_graph_impl,
          .parts = parts,
          .warmup = std::max(config.cuda_graph_warmup_steps, 1),
          .retain_graph = config.cuda_graph_retain_backward_graph};
}

Scope scope_of(const TrainOptions& options, const std::string& impl, const std::vector<std::string>& scopes) {
  return scope_of(config_of(options, impl, scopes));
}

CudaGraphConfig config_of_file(const std::string& file) {
  const CudaGraphConfig config = load_config(file).config;
  require_valid(config);
  return check_config(config).config;
}

// One that was asked for, or all that make sense for the model.
std::vector<Scope> scopes_of(const TrainOptions& options) {
  if (!options.config.empty()) return {scope_of(config_of_file(options.config))};
  if (!options.impl.empty()) return {scope_of(options, options.impl, options.scopes)};
  if (!options.scopes.empty()) return {scope_of(options, "local", options.scopes)};
  std::vector<std::vector<std::string>> parts = {{"attn"}, {"mlp"}};
  if (options.model == "moe") parts = {{"attn"}, {"mlp"}, {"moe_router"}, {"attn", "mlp", "moe_router"}};
  if (options.model == "moe" && options.capacity > 0) parts.push_back({"moe"});
  if (options.model == "hybrid") parts = {{"mamba"}, {"attn"}, {"mlp"}, {"mamba", "attn", "mlp"}};
  std::vector<Scope> scopes;
  for (const auto& one : parts) scopes.push_back(scope_of(options, "local", one));
  scopes.push_back(scope_of(options, "local", {}));
  scopes.push_back(scope_of(options, "full_iteration", {}));
  if (options.model == "moe" && options.capacity == 0) {
    scopes.push_back(scopes.back());
    scopes.back().name = "full_iteration, dispatch eager";
    scopes.back().dispatch_is_eager = true;
  }
  return scopes;
}

TrainingConfig training_of(const TrainOptions& options, const demo::Text& text) {
  TrainingConfig config{.model = {.kind = train::kind_of(options.model), .vocabulary = text.vocabulary()},
                        .steps = options.steps,
                        .seed = options.seed};
  if (options.capacity > 0) {
    config.model.sizes.dispatch = train::Dispatch::padded;
    config.model.sizes.capacity = options.capacity;
  }
  return config;
}

ReportTable table_of_runs() {
  return ReportTable("runs", "",
                     {{"graphs"},
                      {"parts", "parts"},
                      {"captured"},
                      {"replays"},
                      {"ms_per_step", "ms/step", "", 2},
                      {"speed_up", "speed-up", "", 2},
                      {"bytes", "memory", "bytes"},
                      {"loss", "last loss", "", 4},
                      {"equal", "like eager"}});
}

void add_row(ReportTable& table, const std::string& name, const Outcome& run, const Outcome& eager) {
  const bool is_eager = &run == &eager;
  const auto number = [&](std::size_t value) { return is_eager ? ReportValue() : ReportValue(value); };
  table.row({name, number(run.graphed), number(run.captured), number(run.replays), run.ms_per_step,
             eager.ms_per_step / run.ms_per_step, run.bytes ? ReportValue(*run.bytes) : ReportValue(),
             static_cast<double>(run.losses[-1].item<float>()),
             is_eager            ? ""
             : run.equals(eager) ? "bit-equal"
                                 : "NO"});
}

Report describe(const TrainingConfig& config, const TrainOptions& options, c10::Device device) {
  const train::ModelConfig& model = config.model;
  Report report(fmt::format("The same training of a {} model, with other graphs", options.model));
  report.fact("device", "device", fmt::format("{} ({})", device.str(), device_name(device)))
      .fact("model", "model",
            fmt::format("{} layers, width {}, {} heads, context {}, dropout {}{}", model.layers, model.sizes.width,
                        model.sizes.heads, model.context, model.sizes.dropout,
                        model.sizes.dispatch == train::Dispatch::padded
                            ? fmt::format(", experts padded to {} of an even share", model.sizes.capacity)
                            : ""))
      .fact("training", "training",
            fmt::format("{} steps of {} texts; ms/step over the last half", config.steps, config.batch));
  return report;
}

void write(const std::string& path, const TrainOptions& options, const Report& what, const Report& runs) {
  std::ofstream file(path);
  nlohmann::ordered_json json;
  json["command"] = options.command_line;
  json["machine"] = nlohmann::ordered_json::parse(machine_report().to_json());
  json["training"] = nlohmann::ordered_json::parse(what.to_json());
  json["runs"] = nlohmann::ordered_json::parse(runs.to_json())["runs"];
  file << json.dump(2) << "\n";
  if (!file.flush()) {
    throw UsageError({.what = fmt::format("cannot write '{}'", path), .fix = "give --json a file that can be written"});
  }
}

int run_train(const TrainOptions& options) {
  const c10::Device device = chosen_device(options.device);
  if (device.is_cpu()) at::set_num_threads(1);
  const std::vector<Scope> scopes = scopes_of(options);
  const demo::Text text =
      demo::Text::read(options.text.empty() ? demo::default_text() : std::filesystem::path(options.text));
  const TrainingConfig config = training_of(options, text);
  const Report what = describe(config, options, device);
  fmt::print("{}\n", what.to_text());
  const Outcome eager = train::train(config, text, device, {.name = "none"});
  ReportTable table = table_of_runs();
  add_row(table, "none", eager, eager);
  bool all_equal = true;
  std::vector<std::string> reasons;
  for (const Scope& scope : scopes) {
    if (scope.impl == CudaGraphImpl::none) continue;
    const Outcome run = train::train(config, text, device, scope);
    add_row(table, scope.name, run, eager);
    all_equal = all_equal && run.equals(eager);
    for (const std::string& reason : run.reasons) reasons.push_back(fmt::format("{}: {}", scope.name, reason));
  }
  Report runs;
  runs.list("reasons", "What stays eager", reasons).table(std::move(table));
  fmt::print("{}", runs.to_text(/*width=*/120));
  if (!options.json.empty()) write(options.json, options, what, runs);
  if (all_equal) return kSuccess;
  throw Error({.what = "a training with graphs left other losses or parameters than the eager one"});
}

}  // namespace

void add_train(CLI::App& app, Command& chosen, const std::string& command_line) {
  CLI::App* command =
      app.add_subcommand("train", "Train a small model with graphs of each scope, and compare with eager");
  auto options = std::make_shared<TrainOptions>(TrainOptions{.command_line = command_line});
  command->add_option("--model", options->model, "dense, moe, hybrid (Mamba) or vision (image and text)")
      ->check(CLI::IsMember(train::kinds()))
      ->type_name("NAME")
      ->capture_default_str();
  CLI::Option* const file =
      command->add_option("--config", options->config, "Graphs as this configuration says, JSON or YAML")
          ->type_name("FILE");
  command
      ->add_option("--cuda-graph-impl", options->impl,
                   "none, local, transformer_engine or full_iteration; left out, all that make sense for the model")
      ->check(CLI::IsMember({"none", "local", "transformer_engine", "full_iteration"}))
      ->type_name("NAME")
      ->excludes(file);
  command->add_option("--cuda-graph-scope", options->scopes, "Parts of layers: attn, mlp, moe, moe_router, mamba")
      ->delimiter(',')
      ->type_name("NAME,...")
      ->excludes(file);
  command
      ->add_option("--moe-expert-capacity-factor", options->capacity,
                   "Pad each expert to this share of the tokens; left out, the host counts them")
      ->check(CLI::Range(0.1, 100.0).description(""))
      ->type_name("X");
  command->add_option("--cuda-graph-warmup-steps", options->warmup, "Eager steps before the capture")
      ->check(CLI::Range(0, 1000).description(""))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--steps", options->steps, "Training steps of each run")
      ->check(CLI::Range(std::int64_t{2}, std::int64_t{1'000'000}).description(""))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--device", options->device, "Where to train; auto takes a GPU where there is one")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->type_name("NAME")
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Seed of weights, batches and dropout")
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--text", options->text, "Text to learn; left out, a licence text of this machine")
      ->type_name("FILE");
  command->add_option("--json", options->json, "Write the table to this file")->type_name("FILE");
  command->callback([options, &chosen] { chosen = [options] { return run_train(*options); }; });
}

}  // namespace pianola::program
