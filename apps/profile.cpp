#include <apps/commands.hpp>
#include <apps/profile_options.hpp>

#include <pianola/core/version.hpp>
#include <pianola/profile/profile.hpp>
#include <pianola/profile/record/child.hpp>

#include <fmt/format.h>
#include <CLI/App.hpp>

#include <dlfcn.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace pianola::program {
namespace {

struct ProfiledRunArguments {
  std::vector<std::string> command;
  std::string folder;
  std::uint64_t max_mib = 1024;
  double delay = 0, seconds = 0;
  bool nvtx = false;
  ProfileArguments shared;
  ProfileOutputs outputs;
};

// Beside libpianola.so, in the build tree as in an installation.
std::string profiler_library() {
  Dl_info info = {};
  if (dladdr(reinterpret_cast<void*>(&version), &info) == 0) return "libpianola_profiler.so";
  return std::filesystem::path(info.dli_fname).parent_path() / "libpianola_profiler.so";
}

std::string free_folder() {
  std::string folder = "pianola_profile";
  for (int number = 2; std::filesystem::exists(folder); ++number) folder = fmt::format("pianola_profile_{}", number);
  return folder;
}

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::duration<double>(seconds));
}

// Takes the folder away again where nothing was recorded into it.
struct RemovedIfEmpty {
  explicit RemovedIfEmpty(std::string made) : folder(std::move(made)) {}
  RemovedIfEmpty(const RemovedIfEmpty&) = delete;
  RemovedIfEmpty& operator=(const RemovedIfEmpty&) = delete;
  ~RemovedIfEmpty() {
    std::error_code ignored;
    std::filesystem::remove(folder, ignored);
  }
  const std::string folder;
};

// The command's own failure is the exit code; what was recorded until then is reported all the same.
int profile_command(const ProfiledRunArguments& arguments) {
  constexpr std::uint64_t kMiB = 1024 * 1024;
  const RemovedIfEmpty made(arguments.folder.empty() ? free_folder() : arguments.folder);
  const std::string& folder = made.folder;
  ChildResult result = run_profiled(arguments.command, {.folder = folder,
                                                        .library = profiler_library(),
                                                        .nvtx = arguments.nvtx,
                                                        .max_bytes = arguments.max_mib * kMiB,
                                                        .delay = milliseconds(arguments.delay),
                                                        .duration = milliseconds(arguments.seconds)});
  if (result.problem) {
    fmt::print(stderr, "pianola: {}\n", UsageError(*result.problem).what());
    return result.exit_code != 0 ? result.exit_code : kFailure;
  }
  fmt::print(stderr, "pianola: recorded into '{}'; 'pianola decide {}' judges it again\n", folder, folder);
  report_profile(judge(std::move(result.timeline), arguments.shared.analysis), arguments.shared, arguments.outputs);
  return result.exit_code;
}

}  // namespace

void add_profile(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("profile", "Run a command, record what it does to the GPU, and judge it");
  auto arguments = std::make_shared<ProfiledRunArguments>();
  command->add_option("COMMAND", arguments->command, "The command and its arguments, after '--'")->required();
  command->add_option("--output", arguments->folder, "Folder for what is recorded; by default pianola_profile here")
      ->type_name("FOLDER");
  command->add_option("--max-mib", arguments->max_mib, "Bound of each process's recording")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--delay", arguments->delay, "Begin so many seconds after a process's first call of CUDA")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 1e6));
  command->add_option("--seconds", arguments->seconds, "Record for so many seconds; the command goes on; 0: to its end")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 1e6));
  command->add_flag("--nvtx", arguments->nvtx, "Record NVTX ranges as well");
  add_profile_options(*command, arguments->shared);
  add_profile_outputs(*command, arguments->outputs);
  command->footer(
      "pianola profile FILE.py:FUNCTION [--warmup N] [--iterations N] [--modules] [--json FILE] [--html FILE] [--trace "
      "FILE]\n"
      "runs a function of Python (or MODULE:FUNCTION) a few times, records it and judges it, as pianola.profile() "
      "does.\n\n"
      "Exit codes: the command's own; 1 nothing could be recorded, 2 the command line is wrong.");
  command->callback([arguments, &chosen] { chosen = [arguments] { return profile_command(*arguments); }; });
}

}  // namespace pianola::program
