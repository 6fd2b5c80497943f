#include <apps/commands.hpp>
#include <apps/machine.hpp>

#include <fmt/format.h>
#include <CLI/App.hpp>

#include <memory>

namespace pianola::program {

void add_info(CLI::App& app, Command& chosen) {
  CLI::App* info = app.add_subcommand("info", "Show versions, devices and the backends that can be used");
  auto as_json = std::make_shared<bool>(false);
  info->add_flag("--json", *as_json, "Print JSON");
  info->callback([as_json, &chosen] {
    chosen = [as_json] {
      const Report report = machine_report();
      fmt::print("{}", *as_json ? report.to_json() + "\n" : report.to_text());
      return kSuccess;
    };
  });
}

}  // namespace pianola::program
