#include <pianola/audit/cuda/caller.hpp>

#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>

#include <cstddef>
#include <string_view>
#include <utility>

namespace pianola::auditing {
namespace {

constexpr std::size_t kDeepest = 256;

// What the dynamic linker knows of a return address.
struct Place {
  std::string_view library;   // "libcudart.so.13"
  std::string_view function;  // mangled; empty where the address is in no exported function
};

Place place_of(void* return_address) {
  // The call itself is before its return address, which may be the next function's first.
  void* address = static_cast<char*>(return_address) - 1;
  Dl_info info{};
  const ElfW(Sym)* symbol = nullptr;
  if (dladdr1(address, &info, const_cast<void**>(reinterpret_cast<const void**>(&symbol)), RTLD_DL_SYMENT) == 0)
    return {};
  Place place;
  if (info.dli_fname != nullptr) {
    place.library = info.dli_fname;
    place.library.remove_prefix(place.library.rfind('/') + 1);  // npos + 1 is 0
  }
  const bool within = symbol != nullptr && info.dli_saddr != nullptr &&
                      static_cast<char*>(address) < static_cast<char*>(info.dli_saddr) + symbol->st_size;
  if (within && info.dli_sname != nullptr) place.function = info.dli_sname;
  return place;
}

// Between CUDA's libraries there may be code that no library holds.
bool is_cuda(std::string_view library) {
  return library.empty() || library.starts_with("libcuda.so") || library.starts_with("libcudart") ||
         library.starts_with("libcupti");
}
bool is_torch(std::string_view library) { return library.starts_with("libtorch") || library.starts_with("libc10"); }

bool is_device_torch(std::string_view library) { return library.starts_with("libc10_cuda"); }

std::vector<void*> stack_here() {
  std::vector<void*> frames(kDeepest);
  const int depth = backtrace(frames.data(), static_cast<int>(frames.size()));
  frames.resize(static_cast<std::size_t>(depth));
  return frames;
}

// The frames behind the innermost ones in such libraries; what is before those is the handler. Empty where there are
// none.
template <typename Predicate>
std::vector<void*> frames_behind(std::vector<void*> all, const Predicate& is_skipped) {
  std::size_t first = 0;
  const auto library = [&](std::size_t i) { return place_of(all[i]).library; };
  while (first < all.size() && (library(first).empty() || !is_skipped(library(first)))) ++first;
  while (first < all.size() && is_skipped(library(first))) ++first;
  all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(first));
  return all;
}

bool has_python_lock() {
  static const auto initialized = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "Py_IsInitialized"));
  static const auto check = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Check"));
  return initialized != nullptr && check != nullptr && initialized() != 0 && check() == 1;
}

// What torch's users call is exported. What is not is its own housekeeping, with one exception: the methods behind
// torch.Stream and torch.Event, which are called from another library and call CUDA at once. The allocator, in the same
// library, does so several calls deep.
bool is_entry(const std::vector<void*>& frames, std::string_view library, std::string_view function) {
  if (library.starts_with("libtorch_python")) return true;
  if (!function.empty()) return function.find("Alloc") == std::string_view::npos;
  return is_device_torch(library) && frames.size() > 1 && place_of(frames[1]).library != library;
}

// Note [Python's frames in a call of CUDA]
// Taking the frames of Python needs the interpreter's lock, and a thread that waits for it in the middle of a call of
// CUDA must hold no lock that another thread wants while it has the interpreter's: the allocators' are such, since
// Python frees tensors. So in calls that may come from an allocator no Python frames are taken unless this thread has
// the interpreter's lock already. Bindings let go of it before they wait, and hold nothing else then.
CallerStack classify(std::vector<void*> frames) {
  CallerStack stack;
  stack.frames = std::move(frames);
  if (stack.frames.empty()) return stack;
  const Place caller = place_of(stack.frames[0]);
  stack.library = caller.library;
  if (!is_torch(caller.library)) {
    stack.caller = Caller::other;
  } else {
    stack.caller = is_entry(stack.frames, caller.library, caller.function) ? Caller::torch : Caller::internal;
  }
  stack.script_is_safe = stack.caller != Caller::internal || has_python_lock();
  return stack;
}

}  // namespace

CallerStack caller_of_cuda() { return classify(frames_behind(stack_here(), is_cuda)); }

// The warning comes from libc10_cuda itself; what autograd's threads collected and repeat later does not.
CallerStack caller_of_torch() {
  bool direct = false;
  CallerStack stack;
  stack.frames = frames_behind(stack_here(), [&](std::string_view library) {
    direct = direct || is_device_torch(library);
    return is_torch(library);
  });
  if (!direct || stack.frames.empty()) return {};
  stack.caller = Caller::torch;
  stack.script_is_safe = has_python_lock();
  return stack;
}

}  // namespace pianola::auditing
