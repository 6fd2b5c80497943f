#include <apps/commands.hpp>

#include <pianola/core/error.hpp>

#include <fmt/format.h>
#include <CLI/App.hpp>

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

namespace pianola::program {
namespace {

namespace fs = std::filesystem;

// The benchmarks are a program of their own: they reach into parts of the library that libpianola.so hides, and a second
// copy of those has no place in the program that users run. It is installed beside this one, and built next door.
fs::path bench_program() {
  const fs::path here = fs::read_symlink("/proc/self/exe").parent_path();
  for (const fs::path& candidate : {here / "pianola_bench", here.parent_path() / "bench" / "pianola_bench"}) {
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  throw Error({.what = fmt::format("there is no program pianola_bench beside '{}'", here.string()),
               .fix = "build it with 'make bench'"});
}

// Does not come back unless the benchmarks cannot be started: the exit code is theirs.
int run_bench(std::vector<std::string> arguments) {
  const fs::path program = bench_program();
  arguments.insert(arguments.begin(), "pianola bench");
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  execv(program.c_str(), pointers.data());
  throw Error({.what = fmt::format("cannot start '{}': {}", program.string(), std::strerror(errno))});
}

}  // namespace

void add_bench(CLI::App& app, Command& chosen) {
  CLI::App* bench = app.add_subcommand("bench", "Run the benchmarks: 'pianola bench [FILTER] [--json FILE]'");
  bench->set_help_flag();  // the benchmarks know best
  bench->prefix_command();
  bench->callback([bench, &chosen] { chosen = [rest = bench->remaining()] { return run_bench(rest); }; });
}

}  // namespace pianola::program
