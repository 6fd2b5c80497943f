#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace pianola::auditing {

/// Whose code called CUDA.
enum class Caller : std::uint8_t {
  unknown,   ///< The stack could not be read, or nobody looked.
  torch,     ///< An entry point of torch: torch.cuda.synchronize(), Event.query().
  internal,  ///< torch's own code behind those: operations, the caching allocators.
  other,     ///< Code outside torch's libraries: the step's own, or another library's.
};

/// The stack of a call of CUDA, from the caller on.
struct CallerStack {
  Caller caller = Caller::unknown;
  std::vector<void*> frames = {};  ///< Return addresses, innermost first; empty where it is unknown.
  std::string library = {};        ///< Of the caller: "libnccl.so.2"; the name of the program where it is that.
  /// Python's frames may be taken: this thread has the interpreter's lock, or holds no lock of torch's while it waits
  /// for it. See Note [Python's frames in a call of CUDA].
  bool script_is_safe = false;
};

/// For handlers of CuptiSubscription: who makes the call that is being handled. Some us.
[[nodiscard]] CallerStack caller_of_cuda();

/// The same from a handler of torch's warnings about waits: who called the function of torch that waits; unknown where
/// the warning is not about a call that is being made.
[[nodiscard]] CallerStack caller_of_torch();

}  // namespace pianola::auditing
