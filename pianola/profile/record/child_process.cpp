#include <pianola/profile/record/child_process.hpp>

#include <pianola/core/error.hpp>

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

namespace pianola::profiling {
namespace {

constexpr std::array kForwarded = {SIGINT, SIGTERM};

volatile std::sig_atomic_t forward_to = 0;

// The terminal sends its signals to the child too: those are not sent twice.
void forward(int signal, siginfo_t* info, void* /*context*/) {
  const int error = errno;
  if (forward_to > 0 && info->si_code != SI_KERNEL) kill(forward_to, signal);
  errno = error;
}

sigset_t forwarded_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : kForwarded) sigaddset(&set, signal);
  return set;
}

// While it lives, signals go on to a child. They are held back until there is one.
class SignalForwarding {
 public:
  SignalForwarding() {
    const sigset_t held = forwarded_signals();
    pthread_sigmask(SIG_BLOCK, &held, &mask_);
    struct sigaction action {};
    action.sa_sigaction = &forward;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    for (std::size_t i = 0; i < kForwarded.size(); ++i) {
      sigaction(kForwarded[i], nullptr, &before_[i]);
      // Ignored by whoever started us (nohup): then the child ignores it as well.
      if (before_[i].sa_handler != SIG_IGN) sigaction(kForwarded[i], &action, nullptr);
    }
  }
  SignalForwarding(const SignalForwarding&) = delete;
  SignalForwarding& operator=(const SignalForwarding&) = delete;
  ~SignalForwarding() {
    const sigset_t held = forwarded_signals();
    pthread_sigmask(SIG_BLOCK, &held, nullptr);
    forward_to = 0;
    for (std::size_t i = 0; i < kForwarded.size(); ++i) sigaction(kForwarded[i], &before_[i], nullptr);
    pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
  }

  void begin(pid_t child) {
    forward_to = child;
    pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
  }
  // In the child, before it becomes the program: handlers go by themselves, masks stay.
  void undo_in_child() const { pthread_sigmask(SIG_SETMASK, &mask_, nullptr); }

 private:
  sigset_t mask_{};
  std::array<struct sigaction, kForwarded.size()> before_{};
};

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (const std::string& text : texts) all.push_back(const_cast<char*>(text.c_str()));
  all.push_back(nullptr);
  return all;
}

// This process's, with other values for some variables.
std::vector<std::string> environment_with(const std::vector<std::pair<std::string, std::string>>& changes) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    bool replaced = false;
    for (const auto& [name, value] : changes) {
      replaced = replaced || (text.starts_with(name) && text.substr(name.size()).starts_with('='));
    }
    if (!replaced) all.emplace_back(text);
  }
  for (const auto& [name, value] : changes) all.push_back(name + "=" + value);
  return all;
}

[[noreturn]] void refuse(const std::string& program, int error) {
  if (error == ENOENT) {
    throw UsageError({.what = fmt::format("there is no program '{}'", program),
                      .fix = program.find('/') == std::string::npos
                                 ? "check its name, or give its path"
                                 : "check the path, and the first line of a script"});
  }
  if (error == EACCES || error == ENOEXEC) {
    throw UsageError({.what = fmt::format("'{}' cannot be executed: {}", program, strerror(error)),
                      .fix = "give a program, or put its interpreter in front: python " + program});
  }
  throw UsageError({.what = fmt::format("'{}' could not be started: {}", program, strerror(error))});
}

// The error of the exec that the child tells of through a pipe, which a successful one closes; 0: none.
int read_error(int pipe_end) {
  int error = 0;
  ssize_t got = 0;
  do {
    got = read(pipe_end, &error, sizeof error);
  } while (got < 0 && errno == EINTR);
  return got == sizeof error ? error : 0;
}

// The child's number is its own until it is collected: no signal may go to it afterwards.
int wait_for(pid_t child) {
  siginfo_t info{};
  while (waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) < 0 && errno == EINTR) {
  }
  forward_to = 0;
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

}  // namespace

Ending run_to_end(const std::vector<std::string>& command,
                  const std::vector<std::pair<std::string, std::string>>& environment) {
  // All that allocates comes before the fork: other threads may hold the allocator's locks.
  const std::vector<char*> arguments = pointers(command);
  const std::vector<std::string> variables = environment_with(environment);
  const std::vector<char*> variable_pointers = pointers(variables);
  std::array<int, 2> error_pipe{};
  if (pipe2(error_pipe.data(), O_CLOEXEC) != 0) refuse(command[0], errno);

  SignalForwarding signals;
  const pid_t child = fork();
  if (child == 0) {
    signals.undo_in_child();
    execvpe(arguments[0], arguments.data(), variable_pointers.data());
    const int error = errno;
    [[maybe_unused]] const ssize_t told = write(error_pipe[1], &error, sizeof error);
    _exit(127);
  }
  const int fork_error = child < 0 ? errno : 0;
  close(error_pipe[1]);
  if (child > 0) signals.begin(child);
  const int error = child < 0 ? fork_error : read_error(error_pipe[0]);
  close(error_pipe[0]);
  const int status = child < 0 ? 0 : wait_for(child);
  if (error != 0) refuse(command[0], error);
  if (WIFSIGNALED(status)) return {.exit_code = 128 + WTERMSIG(status), .signal = WTERMSIG(status)};
  return {.exit_code = WEXITSTATUS(status), .signal = 0};
}

}  // namespace pianola::profiling
