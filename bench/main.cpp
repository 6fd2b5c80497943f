#include "suite.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <exception>
#include <iostream>

namespace {

std::string command_line(int count, char** arguments) {
  std::string text;
  for (int i = 0; i < count; ++i) text += (i == 0 ? "" : " ") + std::string(arguments[i]);
  return text;
}

int list(const pianola::bench::Options& options) {
  for (const std::string& name : pianola::bench::names(options)) std::cout << name << "\n";
  return 0;
}

int run(const pianola::bench::Options& options) {
  const auto results = pianola::bench::run(options, std::cout);
  return std::any_of(results.begin(), results.end(), [](const auto& result) { return !result.error.empty(); });
}

}  // namespace

int main(int count, char** arguments) {
  pianola::bench::Options options{.command = command_line(count, arguments)};
  bool only_list = false;
  CLI::App app("Runs Pianola's benchmarks. A missed requirement is reported, but is no failure.");
  app.add_option("filter", options.filter, "run those whose name contains this");
  app.add_option("--device", options.device, "auto, cpu or cuda")->capture_default_str();
  app.add_option("--json", options.json, "write all samples to this file");
  app.add_option("--traces", options.traces, "write Chrome traces into this folder, where a benchmark has some");
  app.add_option("--blocks", options.blocks, "samples per contender")->capture_default_str();
  app.add_flag("--quick", options.quick, "little work: only to see that the benchmarks run");
  app.add_flag("--list", only_list, "print the names and stop");
  CLI11_PARSE(app, count, arguments);
  try {
    return only_list ? list(options) : run(options);
  } catch (const std::exception& error) {
    std::cerr << "pianola_bench: " << error.what() << "\n";
    return 2;
  }
}
