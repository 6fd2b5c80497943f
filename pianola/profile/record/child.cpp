#include <pianola/profile/record/child.hpp>

#include <pianola/profile/read/recorder_status.hpp>
#include <pianola/profile/read/recording.hpp>
#include <pianola/profile/read/recording_format.hpp>
#include <pianola/profile/record/child_process.hpp>
#include <pianola/profile/record/recorder_environment.hpp>

#include <fmt/format.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace pianola {
namespace profiling {
namespace {

// The command may change its folder.
std::string absolute(const std::string& path) {
  char* resolved = realpath(path.c_str(), nullptr);
  if (resolved == nullptr) return "";
  std::string text = resolved;
  std::free(resolved);
  return text;
}

// With the folders above it.
bool make_folder(const std::string& path) {
  for (std::size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    mkdir(path.substr(0, slash).c_str(), 0777);  // there already, or the last one fails
  }
  return mkdir(path.c_str(), 0777) == 0 || errno == EEXIST;
}

std::string prepare_folder(const std::string& folder) {
  const bool made = !folder.empty() && make_folder(folder);
  const std::string path = made ? absolute(folder) : "";
  if (path.empty() || access(path.c_str(), W_OK | X_OK) != 0) {
    throw UsageError({.what = fmt::format("recordings cannot be written to the folder '{}': {}", folder,
                                          folder.empty() ? "it has no name" : strerror(errno)),
                      .fix = "give another folder with --output"});
  }
  if (!process_files(path, std::string(kRecordingSuffix)).empty() || !read_statuses(path).empty()) {
    throw UsageError({.what = fmt::format("the folder '{}' holds recordings already", folder),
                      .fix = "give another folder with --output, or delete them"});
  }
  return path;
}

std::string find_library(const std::string& library) {
  std::string path = absolute(library);
  if (!path.empty() && access(path.c_str(), R_OK) == 0) return path;
  throw UsageError({.what = fmt::format("the recorder's library is not at '{}': {}", library, strerror(errno)),
                    .fix = "install pianola with CUDA (PIANOLA_CUDA=ON): libpianola_profiler.so lies beside "
                           "libpianola.so"});
}

void check_for_other_profilers(const std::string& library) {
  const char* other = std::getenv(kCudaInjectionVariable);
  if (other == nullptr || *other == '\0' || absolute(other) == library) return;
  throw UsageError(
      {.what = fmt::format("another profiler is to be loaded already: {} is '{}'", kCudaInjectionVariable, other),
       .fix = fmt::format("unset {}, or run without that profiler (nsys, ncu)", kCudaInjectionVariable)});
}

std::vector<std::pair<std::string, std::string>> environment(const std::string& folder, const std::string& library,
                                                             const ChildOptions& options) {
  std::vector<std::pair<std::string, std::string>> variables = {
      {kFolderVariable, folder},
      {kMostBytesVariable, fmt::format("{}", options.max_bytes)},
      {kDelayVariable, fmt::format("{}", options.delay.count())},
      {kDurationVariable, fmt::format("{}", options.duration.count())},
      {kCuptiVariable, absolute(options.cupti)},
      {kCudaInjectionVariable, library}};
  if (options.nvtx) variables.emplace_back(kNvtxInjectionVariable, library);
  return variables;
}

std::string in_words(const Ending& ending) {
  if (ending.signal != 0) return fmt::format("was ended by signal {} ({})", ending.signal, strsignal(ending.signal));
  return fmt::format("ended with exit code {}", ending.exit_code);
}

Diagnosis never_used_cuda(const std::string& program, const Ending& ending) {
  return {
      .what = fmt::format("'{}' {} and never used CUDA: neither it nor a program that it started initialised the "
                          "driver",
                          program, in_words(ending)),
      .fix = fmt::format("see that it reaches its first CUDA call, that torch.cuda.is_available() is true in it, and "
                         "that nothing between (sudo, ssh, a container) drops the variable {}",
                         kCudaInjectionVariable)};
}

Diagnosis no_work(const std::string& program, const Ending& ending, const Timeline& timeline) {
  Diagnosis diagnosis{.what = fmt::format("'{}' {} and used CUDA, but no kernel, copy or memset was recorded", program,
                                          in_words(ending)),
                      .fix = "see that it does its work on a GPU, and let it run longer"};
  for (const std::string& note : timeline.notes) diagnosis.what += "; " + note;
  return diagnosis;
}

void read_result(const std::string& folder, const std::string& program, const Ending& ending, ChildResult& result) {
  const bool nothing = process_files(folder, std::string(kRecordingSuffix)).empty() && read_statuses(folder).empty();
  if (nothing) {
    result.problem = never_used_cuda(program, ending);
    return;
  }
  try {
    Timeline timeline = read_recordings(folder);
    if (timeline.work.empty()) {
      result.problem = no_work(program, ending, timeline);
    } else {
      result.timeline = std::move(timeline);
    }
  } catch (const UsageError& error) {
    result.problem = error.diagnosis();
  }
}

}  // namespace
}  // namespace profiling

ChildResult run_profiled(const std::vector<std::string>& command, const ChildOptions& options) {
  if (command.empty() || command[0].empty()) {
    throw UsageError({.what = "there is no command to profile",
                      .fix = "give it behind two dashes: pianola profile -- python train.py"});
  }
  const std::string library = profiling::find_library(options.library);
  profiling::check_for_other_profilers(library);
  const std::string folder = profiling::prepare_folder(options.folder);
  const profiling::Ending ending = profiling::run_to_end(command, profiling::environment(folder, library, options));
  ChildResult result;
  result.exit_code = ending.exit_code;
  result.signal = ending.signal;
  profiling::read_result(folder, command[0], ending, result);
  return result;
}

}  // namespace pianola
