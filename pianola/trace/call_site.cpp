#include <pianola/trace/call_site.hpp>

#include <torch/csrc/profiler/combined_traceback.h>
#include <torch/csrc/profiler/unwind/unwind.h>

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <string_view>

namespace pianola::trace {
namespace {

struct Frame {
  std::string function;
  std::string file;
  std::string line;
};

bool starts_with_any(std::string_view text, std::initializer_list<std::string_view> prefixes) {
  for (const std::string_view prefix : prefixes) {
    if (text.starts_with(prefix)) return true;
  }
  return false;
}

// Libraries whose frames are never the user's.
bool is_plumbing_library(const std::string& path) {
  const std::string name = std::filesystem::path(path).filename().string();
  return starts_with_any(name, {"libtorch", "libc10", "libpianola.so", "libstdc++", "libc.so", "libgomp", "ld-linux",
                                "libpython", "python"});
}

// A return type may stand before the qualified name: look at the last word before the arguments.
bool is_plumbing_function(std::string_view function) {
  const std::string_view head = function.substr(0, function.find('('));
  const std::size_t name_at = head.substr(0, head.find('<')).rfind(' ');
  const std::string_view name = name_at == std::string_view::npos ? head : head.substr(name_at + 1);
  return starts_with_any(name, {"at::", "c10::", "torch::", "std::", "__gnu_cxx::", "pianola::trace::",
                                "pianola::graph::", "pianola::Graph::", "pianola::CaptureScope::", "pybind11::",
                                "operator", "_start", "__libc_start", "testing::"});
}

std::string run(const std::vector<std::string>& command) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) return "";
  const pid_t child = fork();
  if (child < 0) {
    close(ends[0]);
    close(ends[1]);
    return "";
  }
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
    std::vector<char*> argv;
    for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  close(ends[1]);
  std::string output;
  std::array<char, 4096> buffer{};
  for (ssize_t got; (got = read(ends[0], buffer.data(), buffer.size())) > 0;) {
    output.append(buffer.data(), static_cast<std::size_t>(got));
  }
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return output;
}

// One address gives several frames where calls were inlined, innermost first: addr2line prints two lines for each.
std::vector<Frame> frames_at(const std::string& library, std::uint64_t offset) {
  // The address is where the call returns to; the call itself is before it.
  const std::string printed = run({"addr2line", "-C", "-f", "-i", "-e", library, fmt::format("{:#x}", offset - 1)});
  std::vector<Frame> frames;
  std::size_t at = 0;
  const auto next_line = [&] {
    const std::size_t end = std::min(printed.find('\n', at), printed.size());
    std::string line = printed.substr(at, end - at);
    at = end + 1;
    return line;
  };
  while (at < printed.size()) {
    Frame frame{.function = next_line(), .file = next_line(), .line = {}};
    const std::size_t colon = frame.file.rfind(':');
    if (colon != std::string::npos) {
      frame.line = frame.file.substr(colon + 1, frame.file.find(' ', colon) - colon - 1);
      frame.file = frame.file.substr(0, colon);
    }
    frames.push_back(std::move(frame));
  }
  return frames;
}

// "train_step(Model&, at::Tensor const&)" reads as "train_step"; a lambda keeps its owner.
std::string short_name(std::string function) {
  const std::size_t arguments = function.find('(');
  if (arguments != std::string::npos && arguments > 0 && !function.starts_with("(anonymous namespace)")) {
    const std::size_t lambda = function.find("::{lambda");
    return function.substr(0, std::min(arguments, lambda));
  }
  return function;
}

std::string render(const Frame& frame) {
  const std::string name = short_name(frame.function);
  if (frame.file.empty() || frame.file == "??" || frame.line == "?" || frame.line == "0") return name;
  return fmt::format("{} at {}:{}", name, std::filesystem::path(frame.file).filename().string(), frame.line);
}

std::string first_user_frame(const std::vector<void*>& addresses) {
  for (void* address : addresses) {
    const auto place = torch::unwind::libraryFor(address);
    if (!place || is_plumbing_library(place->first)) continue;
    const std::vector<Frame> frames = frames_at(place->first, place->second);
    for (const Frame& frame : frames) {
      if (frame.function != "??" && !is_plumbing_function(frame.function)) return render(frame);
    }
    if (frames.empty() || frames.front().function == "??") {
      // No debug information, or no addr2line on this machine: the dynamic symbol table knows exported functions.
      const std::vector<torch::unwind::Frame> named = torch::unwind::symbolize({address}, torch::unwind::Mode::fast);
      if (!named.empty() && named.front().funcname != "??" && !is_plumbing_function(named.front().funcname)) {
        return short_name(named.front().funcname);
      }
    }
  }
  return "";
}

std::string first_python_frame(torch::CapturedTraceback& traceback) {
  const torch::SymbolizedTracebacks symbolized = torch::symbolize({&traceback});
  for (const std::uint64_t index : symbolized.tracebacks.front()) {
    const torch::unwind::Frame& frame = symbolized.all_frames[index];
    const bool library = frame.filename.find("/torch/") != std::string::npos ||
                         frame.filename.find("/pianola/") != std::string::npos;
    if (!library) {
      return fmt::format("{} at {}:{}", frame.funcname, std::filesystem::path(frame.filename).filename().string(),
                         frame.lineno);
    }
  }
  return "";
}

// Python's part of CapturedTraceback exists only where libtorch_python is loaded; asking for it elsewhere costs nothing
// but the allocation, which this check saves.
bool python_is_loaded() {
  static const bool loaded = dlsym(RTLD_DEFAULT, "Py_IsInitialized") != nullptr;
  return loaded;
}

}  // namespace

CallSite CallSite::here() {
  CallSite site;
  site.frames_ = torch::unwind::unwind();
  if (python_is_loaded()) site.python_ = torch::CapturedTraceback::gather(true, false, false);
  return site;
}

std::string CallSite::describe() const {
  try {
    if (python_ != nullptr) {
      if (std::string place = first_python_frame(*python_); !place.empty()) return place;
    }
    return first_user_frame(frames_);
  } catch (const std::exception&) {
    return "";  // A place is a courtesy; the error it belongs to must reach the caller in any case.
  }
}

}  // namespace pianola::trace
