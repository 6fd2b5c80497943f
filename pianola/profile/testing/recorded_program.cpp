// A program that uses "CUDA" as far as the recorder sees it: like the driver it loads the library that
// CUDA_INJECTION64_PATH names. Its arguments are what it does, one after the other.
#include <nvtx3/nvToolsExt.h>

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <future>
#include <string>
#include <thread>

namespace {

void initialize_cuda() {
  const char* path = std::getenv("CUDA_INJECTION64_PATH");
  if (path == nullptr) return;
  void* library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) std::exit(90);
  const auto initialize = reinterpret_cast<int (*)()>(dlsym(library, "InitializeInjection"));
  if (initialize == nullptr || initialize() != 1) std::exit(91);
}

void work(int count) {
  void* cupti = dlopen("libcupti.so.13", RTLD_LAZY | RTLD_NOLOAD);
  if (cupti == nullptr) return;
  reinterpret_cast<void (*)(int)>(dlsym(cupti, "pianola_fake_work"))(count);
}

void annotate() {
  nvtxNameOsThreadA(1, "main");  // where real ones crash, so does the fake
  nvtxRangePushA("step");
  work(1);
  nvtxRangePop();
}

// The program exports what it instantiates of the standard library, as libtorch does: the recorder must not call it.
void keep_a_promise() {
  std::promise<void> promise;
  std::thread keeper([&] { promise.set_value(); });
  promise.get_future().wait();
  keeper.join();
}

// A copy of the process that ends on its own, as workers of a data loader do.
void fork_and_exit() {
  const pid_t child = fork();
  if (child == 0) std::exit(0);
  waitpid(child, nullptr, 0);
}

void start_another(const char* program) {
  const std::string command = std::string(program) + " cuda work=3";
  if (std::system(command.c_str()) != 0) std::exit(92);
}

void perform(const std::string& action, const char* program) {
  if (action == "cuda") initialize_cuda();
  if (action == "promise") keep_a_promise();
  if (action == "fork") fork_and_exit();
  if (action == "nvtx") annotate();
  if (action == "another") start_another(program);
  if (action == "pause") sleep(2);  // longer than a recorder's period
  if (action == "wait") pause();
  if (action == "abort") std::abort();
  if (action == "leave") _exit(5);
  if (action.starts_with("work=")) work(std::stoi(action.substr(5)));
  if (action.starts_with("exit=")) std::exit(std::stoi(action.substr(5)));
}

}  // namespace

int main(int count, char** arguments) {
  for (int i = 1; i < count; ++i) perform(arguments[i], arguments[0]);
  return 0;
}
