#include <apps/commands.hpp>

#include <pianola/config/check.hpp>
#include <pianola/config/environment.hpp>
#include <pianola/config/field.hpp>
#include <pianola/config/file.hpp>
#include <pianola/config/rule.hpp>
#include <pianola/core/error.hpp>
#include <pianola/core/report.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/App.hpp>

#include <memory>
#include <string>
#include <vector>

namespace pianola::program {
namespace {

struct ConfigArguments {
  std::string file;
  std::string target;
  std::string rule;
  bool with_environment = false;
  bool allow_other_keys = false;
  bool as_json = false;
};

using Action = int (*)(const ConfigArguments& arguments);

int check(const ConfigArguments& arguments) {
  LoadedConfig loaded = load_config(arguments.file, {.allow_other_keys = arguments.allow_other_keys});
  if (!arguments.target.empty()) config_field("target").set(loaded.config, arguments.target);
  if (arguments.with_environment) loaded.config = with_environment(std::move(loaded.config));
  ConfigReport report = check_config(std::move(loaded.config));
  report.notes = std::move(loaded.migrated);
  if (!loaded.other_keys.empty()) {
    report.notes.push_back(fmt::format("not looked at: {}", fmt::join(loaded.other_keys, ", ")));
  }
  fmt::print("{}", arguments.as_json ? report.to_json() + "\n" : report.to_text());
  return report.exit_code();
}

// What was changed goes to stderr, so that stdout is the file.
int migrate(const ConfigArguments& arguments) {
  const MigratedConfig migrated = migrate_config(arguments.file);
  for (const std::string& note : migrated.migrated) fmt::print(stderr, "{}\n", note);
  fmt::print("{}\n", migrated.text);
  return kSuccess;
}

int explain(const ConfigArguments& arguments) {
  fmt::print("{}", describe(config_rule(arguments.rule)));
  return kSuccess;
}

std::string targets_of(const ConfigRule& rule) {
  std::vector<std::string_view> names;
  for (const auto target : {ConfigTarget::pianola, ConfigTarget::megatron, ConfigTarget::bridge}) {
    if (rule.targets.contains(target)) names.push_back(in_words(target));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

int rules(const ConfigArguments& arguments) {
  ReportTable brief("rules", "", {{"id"}, {"outcome"}, {"targets"}, {"title"}});
  ReportTable whole("rules", "", {{"id"}, {"outcome"}, {"targets"}, {"title"}, {"message"}, {"advice"}, {"reason"}});
  for (const ConfigRule& rule : config_rules()) {
    brief.row({rule.id, in_words(rule.outcome), targets_of(rule), rule.title});
    whole.row({rule.id, in_words(rule.outcome), targets_of(rule), rule.title, rule.message, rule.advice, rule.reason});
  }
  constexpr std::size_t kWide = 140;
  fmt::print("{}", arguments.as_json ? Report().table(whole).to_json() + "\n" : Report().table(brief).to_text(kWide));
  return kSuccess;
}

int keys(const ConfigArguments& arguments) {
  const CudaGraphConfig defaults;
  ReportTable table("keys", "", {{"key"}, {"default"}, {"accepts"}, {"meaning"}});
  std::string text;
  for (const ConfigField& field : config_fields()) {
    const std::string value = written_out(field.get(defaults));
    table.row({field.path(), value, field.accepts(), field.meaning});
    text += fmt::format("{} = {}\n    {}\n    {}\n", field.path(), value, field.meaning, field.accepts());
  }
  fmt::print("{}", arguments.as_json ? Report().table(table).to_json() + "\n" : text);
  return kSuccess;
}

std::string trouble_with_rule(const std::string& id) {
  try {
    (void)config_rule(id);
    return "";
  } catch (const UsageError& error) {
    return error.diagnosis().what;
  }
}

CLI::App* add(CLI::App& config, Command& chosen, const std::shared_ptr<ConfigArguments>& arguments, const char* name,
              const char* what, Action action) {
  CLI::App* command = config.add_subcommand(name, what);
  command->callback([arguments, action, &chosen] { chosen = [arguments, action] { return action(*arguments); }; });
  return command;
}

void add_json(CLI::App& command, ConfigArguments& arguments) {
  command.add_flag("--json", arguments.as_json, "Print JSON");
}

void add_file(CLI::App& command, ConfigArguments& arguments) {
  command.add_option("file", arguments.file, "JSON, or YAML where it is named .yaml or .yml")
      ->required()
      ->type_name("FILE");
}

void add_check(CLI::App& command, ConfigArguments& arguments) {
  add_file(command, arguments);
  command.add_option("--target", arguments.target, "Whose graphs it is for, whatever the file says")
      ->check(CLI::IsMember({"pianola", "megatron", "bridge"}));
  command.add_flag("--environment", arguments.with_environment,
                   "Take what the file does not say from the environment: NCCL_GRAPH_REGISTER, ...");
  command.add_flag("--allow-other-keys", arguments.allow_other_keys,
                   "Skip keys that have nothing to do with graphs, as in a framework's whole configuration");
  add_json(command, arguments);
}

}  // namespace

void add_config(CLI::App& app, Command& chosen) {
  CLI::App* config = app.add_subcommand("config", "Check a training configuration for graphs, explain its rules");
  config->require_subcommand(1);
  auto arguments = std::make_shared<ConfigArguments>();
  add_check(*add(*config, chosen, arguments, "check", "Find everything that is wrong, and fix what can be", &check),
            *arguments);
  add_file(*add(*config, chosen, arguments, "migrate", "Print a file with old names under those of today", &migrate),
           *arguments);
  add(*config, chosen, arguments, "explain", "Tell what a rule says, and why", &explain)
      ->add_option("rule", arguments->rule, "As in CF102")
      ->required()
      ->type_name("ID")
      ->check(CLI::Validator(trouble_with_rule, ""));
  add_json(*add(*config, chosen, arguments, "rules", "List the rules", &rules), *arguments);
  add_json(*add(*config, chosen, arguments, "keys", "List the keys of a file, and what they accept", &keys),
           *arguments);
}

}  // namespace pianola::program
