#pragma once
#include <pianola/core/error.hpp>
#include <pianola/core/export.hpp>
#include <pianola/profile/timeline.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pianola {

struct ChildOptions {
  std::string folder = {};   ///< Where recordings go, one file per process; made where it is not there.
  std::string library = {};  ///< libpianola_profiler.so, which the CUDA driver loads into the command.
  std::string cupti =
      {};  ///< CUPTI's library, for a command that has none loaded or beside its CUDA runtime; may be empty.
  /// Also record NVTX ranges (torch.cuda.nvtx, NCCL, ...): libraries that use NVTX load `library` too.
  bool nvtx = false;
  std::uint64_t max_bytes = std::uint64_t{1} << 30U;  ///< Of each process's file; when reached, its recording ends.
  /// Of each process, from its first call of CUDA on: what passes before anything is recorded, and how long it is then;
  /// 0: at once, and to the end. Before, only its calls are watched; after it, nothing.
  std::chrono::milliseconds delay{0}, duration{0};
};

struct ChildResult {
  int exit_code = 0;                 ///< Of the command; 128 + signal where a signal ended it, as shells have it.
  int signal = 0;                    ///< That ended it; 0: none.
  Timeline timeline;                 ///< Of all processes that used CUDA; empty where `problem` is set.
  std::optional<Diagnosis> problem;  ///< Why there is nothing to analyse.
};

/// Runs a command until it ends, recorded, with the streams of this process; then reads what was recorded. Programs that
/// the command starts are recorded as well; those that outlive it, as far as they came.
///
/// SIGINT and SIGTERM that reach this process meanwhile are passed on to the command, and are not its own; the terminal's
/// Ctrl-C reaches the command by itself.
///
/// @param command  The program, looked up in PATH where it has no slash, and its arguments.
/// @throws UsageError  No command; there is no such program, or it cannot be executed; no such library; the folder cannot
///                     be made or holds recordings already; another profiler has set CUDA_INJECTION64_PATH. Nothing ran.
/// Threads:  One call at a time per process, since signals are the process's.
[[nodiscard]] PIANOLA_API ChildResult run_profiled(const std::vector<std::string>& command,
                                                   const ChildOptions& options);

}  // namespace pianola
