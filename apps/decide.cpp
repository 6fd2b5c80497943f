#include <apps/commands.hpp>
#include <apps/profile_options.hpp>
#include <apps/script_options.hpp>

#include <pianola/profile/decide/comparison.hpp>
#include <pianola/profile/profile.hpp>

#include <fmt/format.h>
#include <CLI/App.hpp>

#include <filesystem>
#include <memory>
#include <string>

namespace pianola::program {
namespace {

struct DecideArguments {
  std::filesystem::path profile;
  ProfileArguments shared;
  ProfileOutputs outputs;
};

struct CompareArguments {
  std::filesystem::path before, after;
  ProfileArguments shared;
};

int decide_about(const DecideArguments& arguments) {
  report_profile(load_profile(arguments.profile, arguments.shared.analysis), arguments.shared, arguments.outputs);
  return kSuccess;
}

int compare(const CompareArguments& arguments) {
  const Profile before = load_profile(arguments.before, arguments.shared.analysis);
  const Profile after = load_profile(arguments.after, arguments.shared.analysis);
  const Report report = comparison_report(before.analysis, before.decision, after.analysis);
  const std::string& json = arguments.shared.json;
  fmt::print("{}", json == "-" ? report.to_json() + "\n" : report.to_text());
  if (!json.empty() && json != "-") write_file(json, report.to_json());
  return kSuccess;
}

}  // namespace

void add_decide(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("decide", "Say from a profile whether a graph helps, and which");
  auto arguments = std::make_shared<DecideArguments>();
  command
      ->add_option("PROFILE", arguments->profile,
                   "Trace of torch.profiler (.json, .json.gz), export of Nsight Systems (.sqlite), or folder of "
                   "'pianola profile'")
      ->required();
  add_profile_options(*command, arguments->shared);
  add_profile_outputs(*command, arguments->outputs);
  command->footer(
      "pianola decide FILE.py:FUNCTION [--warmup N] [--iterations N] [--modules] [--json FILE] [--html FILE] [--trace "
      "FILE]\n"
      "runs a function of Python (or MODULE:FUNCTION) a few times, records it and judges it, as pianola.profile() "
      "does.\n\n"
      "pianola decide --try FILE.py:FUNCTION [--iterations N] [--json FILE]\n"
      "loads the file anew for each scope of graphs, times the function with them, compares with eager, and says which "
      "to take.\n\n"
      "Exit codes: 0 it was judged, 1 the profile cannot be read, 2 the command line is wrong.");
  command->callback([arguments, &chosen] { chosen = [arguments] { return decide_about(*arguments); }; });
}

void add_compare(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("compare", "Compare two profiles of a program: before graphs and with them");
  auto arguments = std::make_shared<CompareArguments>();
  command->add_option("BEFORE", arguments->before, "Profile of the program as it was")->required();
  command->add_option("AFTER", arguments->after, "Profile of the program with graphs")->required();
  add_profile_options(*command, arguments->shared);
  command->callback([arguments, &chosen] { chosen = [arguments] { return compare(*arguments); }; });
}

}  // namespace pianola::program
