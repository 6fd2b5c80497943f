#include <apps/commands.hpp>
#include <apps/machine.hpp>

#include <fmt/format.h>
#include <CLI/App.hpp>

#include <memory>

namespace pianola::program {

void add_info(CLI::App& app, Command& chosen) {
  CLI::App* info = app.add_subcommand("info", "Show versions, devices and the backends that can be used");
  auto as_json = std::make_shared<bool>(false), checked = std::make_shared<bool>(false);
  info->add_flag("--json", *as_json, "Print JSON");
  info->add_flag("--check", *checked,
                 "Try on each device what Pianola builds on inside torch; exit with 1 if something has moved");
  info->callback([as_json, checked, &chosen] {
    chosen = [as_json, checked] {
      Report report = machine_report();
      const bool sound = !*checked || add_internals(report);
      fmt::print("{}", *as_json ? report.to_json() + "\n" : report.to_text());
      return sound ? kSuccess : kFailure;
    };
  });
}

}  // namespace pianola::program
