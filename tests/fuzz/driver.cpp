// Runs a target where there is no libFuzzer: the inputs of the corpus as they are, then as many of the mutator's as are asked
// for. What it finds it writes to a file, which the same program runs again.
//
//     pianola_fuzz_chrome_trace [--runs N] [--seconds S] [--seed K] [--findings FOLDER] FILE|FOLDER...
#include <tests/fuzz/fuzz_target.hpp>
#include <tests/fuzz/mutator.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <csignal>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

// Of the sanitizers' run times, where they are linked.
extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace pianola::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr unsigned kLongestRun = 20;  // Seconds for one input.

struct Arguments {
  std::uint64_t runs = 1000, seconds = 0, seed = 1;
  std::string findings = ".";
  std::vector<fs::path> corpus;
};

// What is run at the moment, for handlers that may allocate nothing.
struct {
  const char* bytes = nullptr;
  std::size_t size = 0;
  std::array<char, 512> path = {};
} running;

void save_finding() {
  if (running.bytes == nullptr) return;
  const int file = open(running.path.data(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return;
  [[maybe_unused]] ssize_t written = write(file, running.bytes, running.size);
  constexpr std::string_view kSaved = "the input is in ";
  written = write(STDERR_FILENO, kSaved.data(), kSaved.size());
  written = write(STDERR_FILENO, running.path.data(), std::string_view(running.path.data()).size());
  written = write(STDERR_FILENO, "\n", 1);
  (void)close(file);
}

extern "C" void on_signal(int number) {
  save_finding();
  (void)std::signal(number, SIG_DFL);
  (void)std::raise(number);
}

extern "C" void on_death() { save_finding(); }

void watch(const Arguments& arguments) {
  const std::string path = (fs::path(arguments.findings) / ("finding-" + std::to_string(getpid()))).string();
  std::copy_n(path.begin(), std::min(path.size(), running.path.size() - 1), running.path.begin());
  for (const int number : {SIGABRT, SIGALRM, SIGFPE, SIGILL}) (void)std::signal(number, on_signal);
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(on_death);
  } else {
    for (const int number : {SIGSEGV, SIGBUS}) (void)std::signal(number, on_signal);
  }
}

void run(const std::string& input) {
  running.bytes = input.data();
  running.size = input.size();
  (void)alarm(kLongestRun);
  try {
    (void)LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "an exception that is not promised: %s\n", error.what());
    std::abort();
  }
  (void)alarm(0);
  running.bytes = nullptr;
}

std::string contents(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::vector<std::string> read_corpus(const std::vector<fs::path>& paths) {
  std::vector<fs::path> files;
  for (const fs::path& path : paths) {
    if (!fs::is_directory(path)) files.push_back(path);
    if (!fs::is_directory(path)) continue;
    for (const fs::directory_entry& entry : fs::directory_iterator(path)) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<std::string> corpus;
  for (const fs::path& file : files) corpus.push_back(contents(file));
  return corpus;
}

bool read_number(std::string_view text, std::uint64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

bool read_arguments(int argc, char** argv, Arguments& arguments) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const bool last = i + 1 == argc;
    if (!word.starts_with("--")) {
      arguments.corpus.emplace_back(word);
    } else if (last) {
      return false;
    } else if (word == "--findings") {
      arguments.findings = argv[++i];
    } else {
      std::uint64_t* number = word == "--runs"      ? &arguments.runs
                              : word == "--seconds" ? &arguments.seconds
                              : word == "--seed"    ? &arguments.seed
                                                    : nullptr;
      if (number == nullptr || !read_number(argv[++i], *number)) return false;
    }
  }
  return !arguments.corpus.empty();
}

// For so many seconds where they are given, else so many runs.
std::uint64_t run_mutations(const Arguments& arguments, std::vector<std::string> corpus) {
  const Mutator mutator(std::move(corpus));
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(arguments.seconds);
  std::uint64_t number = 0;
  while (arguments.seconds == 0 ? number < arguments.runs : std::chrono::steady_clock::now() < end) {
    run(mutator.input(arguments.seed, number++));
  }
  return number;
}

int drive(int argc, char** argv) {
  Arguments arguments;
  if (!read_arguments(argc, argv, arguments)) {
    std::fprintf(stderr, "usage: %s [--runs N] [--seconds S] [--seed K] [--findings FOLDER] FILE|FOLDER...\n", argv[0]);
    return 2;
  }
  const std::vector<std::string> corpus = read_corpus(arguments.corpus);
  if (corpus.empty()) {
    std::fprintf(stderr, "there is no input in the corpus\n");
    return 2;
  }
  watch(arguments);
  for (const std::string& input : corpus) run(input);
  const std::uint64_t runs = run_mutations(arguments, corpus);
  std::printf("%s: %zu inputs of the corpus, %llu made of them with seed %llu: nothing found\n",
              fs::path(argv[0]).filename().c_str(), corpus.size(), static_cast<unsigned long long>(runs),
              static_cast<unsigned long long>(arguments.seed));
  return 0;
}

}  // namespace
}  // namespace pianola::fuzz

int main(int argc, char** argv) { return pianola::fuzz::drive(argc, argv); }
