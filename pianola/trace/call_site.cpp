#include <pianola/trace/call_site.hpp>

#include <torch/csrc/jit/frontend/source_range.h>
#include <torch/csrc/jit/runtime/interpreter.h>
#include <torch/csrc/profiler/combined_traceback.h>
#include <torch/csrc/profiler/unwind/unwind.h>

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

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
bool begins_with(std::string_view function, std::initializer_list<std::string_view> namespaces) {
  const std::string_view head = function.substr(0, function.find('('));
  const std::size_t name_at = head.substr(0, head.find('<')).rfind(' ');
  return starts_with_any(name_at == std::string_view::npos ? head : head.substr(name_at + 1), namespaces);
}

bool is_own_function(std::string_view function) {
  return begins_with(function,
                     {"pianola::trace::", "pianola::graph::", "pianola::auditing::", "pianola::verification::",
                      "pianola::python::", "pianola::TraceRecorder::", "pianola::Graph::", "pianola::CaptureScope::"});
}

bool is_plumbing_function(std::string_view function) {
  return is_own_function(function) ||
         begins_with(function, {"at::", "c10::", "torch::", "std::", "__gnu_cxx::", "__invoke", "pybind11::",
                                "operator", "_start", "__libc_start", "execute_native_thread_routine", "testing::"});
}

// Where this project's sources were when it was compiled.
std::string_view source_folder() {
  static constexpr std::string_view kThisFile = __FILE__;
  return kThisFile.substr(0, kThisFile.rfind("trace/call_site.cpp"));
}

// A frame that was not optimized away may have a name without its namespace: the file tells. Tests use the library.
bool is_own_file(std::string_view file) {
  return file.starts_with(source_folder()) && !file.ends_with("_test.cpp") && file.find("/testing/") == file.npos;
}

// Templates of the standard library and of torch, wherever they were instantiated.
bool is_plumbing_file(std::string_view file) {
  return file.find("/include/c++/") != std::string_view::npos || file.find("/torch/include/") != std::string_view::npos;
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

// The frames of one address: several where calls were inlined, innermost first.
using Frames = std::vector<Frame>;

Frame parse_frame(std::string function, std::string place) {
  Frame frame{.function = std::move(function), .file = std::move(place), .line = {}};
  if (const std::size_t colon = frame.file.rfind(':'); colon != std::string::npos) {
    frame.line = frame.file.substr(colon + 1, frame.file.find(' ', colon) - colon - 1);
    frame.file = frame.file.substr(0, colon);
  }
  return frame;
}

// One run of addr2line for all addresses of a library: reading its debug information is what takes time. It prints each
// address on a line of its own (-a), then two lines for each frame.
std::vector<Frames> look_up(const std::string& library, const std::vector<std::uint64_t>& offsets) {
  std::vector<std::string> command = {"addr2line", "-a", "-C", "-f", "-i", "-e", library};
  // An address is where the call returns to; the call itself is before it.
  for (const std::uint64_t offset : offsets) command.push_back(fmt::format("{:#x}", offset - 1));
  std::istringstream printed(run(command));
  std::vector<Frames> found;
  for (std::string line, place; std::getline(printed, line);) {
    if (line.starts_with("0x")) {
      found.emplace_back();
    } else if (!found.empty() && std::getline(printed, place)) {
      found.back().push_back(parse_frame(line, place));
    }
  }
  found.resize(offsets.size());
  return found;
}

// The frames of each address, remembered: a loop of failing captures asks for the same ones again and again.
std::vector<Frames> frames_of(const std::vector<void*>& addresses) {
  static std::mutex mutex;
  static std::unordered_map<void*, Frames> known;
  const std::lock_guard lock(mutex);
  std::map<std::string, std::pair<std::vector<void*>, std::vector<std::uint64_t>>> wanted;
  for (void* address : addresses) {
    const auto place = known.count(address) == 0 ? torch::unwind::libraryFor(address) : std::nullopt;
    if (!place || is_plumbing_library(place->first)) continue;
    wanted[place->first].first.push_back(address);
    wanted[place->first].second.push_back(place->second);
  }
  for (const auto& [library, request] : wanted) {
    const std::vector<Frames> found = look_up(library, request.second);
    for (std::size_t i = 0; i < found.size(); ++i) known[request.first[i]] = found[i];
  }
  std::vector<Frames> result;
  for (void* address : addresses) result.push_back(known[address]);
  return result;
}

// The file decides where it is known: a lambda that was inlined into std::function has a name of std's, but the user's
// line. Without debug information there is only the name.
bool is_users(const Frame& frame) {
  if (frame.function == "??") return false;
  if (frame.file.empty() || frame.file == "??") return !is_plumbing_function(frame.function);
  return !is_plumbing_file(frame.file) && !is_own_file(frame.file) && !is_own_function(frame.function);
}

// "train_step(Model&, at::Tensor const&)" reads as "train_step"; a lambda, also one wrapped in std::function, as the
// function it stands in.
std::string short_name(std::string function) {
  static constexpr std::string_view kAnonymous = "(anonymous namespace)::";
  for (std::size_t at; (at = function.find(kAnonymous)) != std::string::npos;) function.erase(at, kAnonymous.size());
  if (function.starts_with("operator()")) return "a lambda";
  const std::size_t lambda = function.find("::{lambda");
  if (lambda == std::string::npos) {
    const std::size_t call = function.find("operator()");
    return function.substr(0, call == std::string::npos ? function.find('(') : call + 10);
  }
  std::string owner = function.substr(0, lambda);
  if (owner.ends_with(')')) owner.erase(owner.rfind('('));
  return owner.substr(owner.find_last_of("<, ") + 1);
}

SourcePlace place_of(const Frame& frame) {
  SourcePlace place{.function = short_name(frame.function)};
  if (frame.file.empty() || frame.file == "??" || frame.line == "?" || frame.line == "0") return place;
  place.file = frame.file;
  place.line = std::atoi(frame.line.c_str());
  return place;
}

// Without debug information, or without addr2line on this machine, the symbol table still knows exported functions.
std::string exported_function(void* address) {
  const auto place = torch::unwind::libraryFor(address);
  if (!place || is_plumbing_library(place->first)) return "";
  const std::vector<torch::unwind::Frame> named = torch::unwind::symbolize({address}, torch::unwind::Mode::fast);
  if (named.empty() || named.front().funcname == "??" || is_plumbing_function(named.front().funcname)) return "";
  return short_name(named.front().funcname);
}

SourcePlace first_user_frame(const std::vector<void*>& addresses) {
  const std::vector<Frames> frames = frames_of(addresses);
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    for (const Frame& frame : frames[i]) {
      if (is_users(frame)) return place_of(frame);
    }
    if (frames[i].empty() || frames[i].front().function == "??") {
      if (std::string name = exported_function(addresses[i]); !name.empty()) return {.function = std::move(name)};
    }
  }
  return {};
}

// Grows at import, on the thread that imports, and is read when a place is named.
std::vector<std::string>& hidden_folders() {
  static std::vector<std::string> folders;
  return folders;
}

bool is_hidden(const std::string& file) {
  if (file == "<stdin>" || file.starts_with("<ipython-input")) return false;
  // Made at run time: by dataclasses and torch.fx, by torch.compile.
  if (file.starts_with('<') || file.find("/torchinductor_") != std::string::npos) return true;
  const auto& folders = hidden_folders();
  return std::any_of(folders.begin(), folders.end(),
                     [&](const std::string& folder) { return file.starts_with(folder); });
}

std::vector<SourcePlace> frames_of(torch::CapturedTraceback& traceback) {
  const torch::SymbolizedTracebacks symbolized = torch::symbolize({&traceback});
  std::vector<SourcePlace> frames;
  for (const std::uint64_t index : symbolized.tracebacks.front()) {
    const torch::unwind::Frame& frame = symbolized.all_frames[index];
    frames.push_back({.function = frame.funcname, .file = frame.filename, .line = static_cast<int>(frame.lineno)});
  }
  return frames;
}

// In a file that was saved the lines are those of generated code, which knows the source that it was made from.
std::vector<SourcePlace> frames_of(const std::vector<torch::jit::StackEntry>& stack) {
  std::vector<SourcePlace> frames;
  for (auto entry = stack.rbegin(); entry != stack.rend(); ++entry) {
    const auto source = entry->range.findSourceRangeThatGenerated();
    const auto place = (source ? *source : entry->range).file_line_col();
    SourcePlace frame{.function = entry->filename};  // so it is called: it holds the name of the function
    if (place) {
      frame.file = std::get<0>(*place);
      frame.line = static_cast<int>(std::get<1>(*place));
    }
    frames.push_back(std::move(frame));
  }
  return frames;
}

// Python's part of CapturedTraceback exists only where libtorch_python is loaded.
bool python_is_loaded() {
  static const bool loaded = dlsym(RTLD_DEFAULT, "Py_IsInitialized") != nullptr;
  return loaded;
}

}  // namespace

void CallSite::hide_python_files(std::string folder) { hidden_folders().push_back(std::move(folder)); }

// torch's unwinder reads /proc, which is not there in each container.
namespace {
thread_local bool is_off = false;
}

CallSite::Off::Off() noexcept : before_(std::exchange(is_off, true)) {}
CallSite::Off::~Off() { is_off = before_; }

CallSite CallSite::here() noexcept {
  if (is_off) return {};
  try {
    return of(torch::unwind::unwind(), true);
  } catch (const std::exception&) {
    return of({}, true);
  }
}

// The frames of TorchScript are asked for only where there is no Python: an interpreter under Python hides them anyway.
CallSite CallSite::of(std::vector<void*> frames, bool script) noexcept {
  CallSite site;
  site.frames_ = std::move(frames);
  try {
    if (script && python_is_loaded()) {
      site.python_ = torch::CapturedTraceback::gather(true, false, false);
    } else if (script) {
      std::vector<torch::jit::StackEntry> stack = torch::jit::currentCallstack();
      if (!stack.empty()) {
        site.torchscript_ = std::make_shared<const std::vector<torch::jit::StackEntry>>(std::move(stack));
      }
    }
  } catch (const std::exception&) {  // what is known stays
  }
  return site;
}

SourcePlace CallSite::place() const {
  try {
    for (SourcePlace& frame : script_frames()) {
      if (!is_hidden(frame.file)) return std::move(frame);
    }
    return first_user_frame(frames_);
  } catch (const std::exception&) {
    return {};  // A place is a courtesy; the error it belongs to must reach the caller in any case.
  }
}

bool CallSite::begins_in(std::initializer_list<std::string_view> namespaces) const {
  try {
    if (frames_.empty()) return false;
    const Frames innermost = frames_of({frames_.front()}).front();
    return !innermost.empty() && begins_with(innermost.front().function, namespaces);
  } catch (const std::exception&) {
    return false;
  }
}

std::vector<SourcePlace> CallSite::script_frames() const {
  try {
    if (python_ != nullptr) return frames_of(*python_);
    return torchscript_ == nullptr ? std::vector<SourcePlace>() : frames_of(*torchscript_);
  } catch (const std::exception&) {
    return {};
  }
}

// Libraries without debug information for us, torch's own, have their exported names.
std::vector<SourcePlace> CallSite::native_frames() const {
  try {
    const std::vector<Frames> debug = frames_of(frames_);
    const std::vector<torch::unwind::Frame> exported = torch::unwind::symbolize(frames_, torch::unwind::Mode::fast);
    std::vector<SourcePlace> places;
    for (std::size_t i = 0; i < frames_.size(); ++i) {
      for (const Frame& frame : debug[i]) {
        places.push_back({.function = frame.function, .file = frame.file, .line = std::atoi(frame.line.c_str())});
      }
      if (debug[i].empty()) places.push_back({.function = exported[i].funcname});
    }
    return places;
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace pianola::trace
