#include <apps/profile_options.hpp>

#include <apps/script_options.hpp>

#include <pianola/profile/show/chrome_writer.hpp>
#include <pianola/profile/show/profile_report.hpp>

#include <fmt/format.h>
#include <CLI/App.hpp>

namespace pianola::program {

void add_profile_options(CLI::App& command, ProfileArguments& arguments) {
  command
      .add_option("--range", arguments.analysis.range,
                  "Each entry of this annotation (NVTX, record_function) begins an "
                  "iteration; by default they are found by themselves")
      ->type_name("NAME");
  command.add_option("--gpu", arguments.analysis.device, "The device to look at; by default the one with most work")
      ->type_name("NUMBER")
      ->check(CLI::NonNegativeNumber);
  command
      .add_option("--process", arguments.analysis.process,
                  "The process to look at, from 0; by default the one with most work")
      ->type_name("NUMBER")
      ->check(CLI::NonNegativeNumber);
  command.add_option("--json", arguments.json, "Write the report as JSON to this file; '-': print it")
      ->type_name("FILE");
}

void add_profile_outputs(CLI::App& command, ProfileOutputs& outputs) {
  command.add_option("--html", outputs.html, "Write a page with pictures to this file")->type_name("FILE");
  command.add_option("--trace", outputs.trace, "Write a trace for Perfetto to this file, *.json or *.json.gz")
      ->type_name("FILE");
  command.add_option("--regions", outputs.regions, "Rows of the table of regions")->capture_default_str();
}

void report_profile(const Profile& profile, const ProfileArguments& arguments, const ProfileOutputs& outputs) {
  const Report report = profile_report(profile.timeline, profile.analysis, profile.decision, outputs.regions);
  if (arguments.json == "-") {
    fmt::print("{}\n", report.to_json());
  } else {
    fmt::print("{}", report.to_text());
    if (!arguments.json.empty()) write_file(arguments.json, report.to_json());
  }
  if (!outputs.html.empty()) write_file(outputs.html, profile.to_html());
  if (!outputs.trace.empty()) write_chrome_trace(profile.timeline, profile.analysis, outputs.trace);
}

}  // namespace pianola::program
