#pragma once

namespace pianola {

/// @throws UsageError  Says so of "a graph".
[[noreturn]] void refuse_moved_from(const char* object);

/// What an object keeps behind a pointer, and loses where it is moved from: its calls are refused then, in place of a crash.
/// @param object  "a graph".
template <typename Pointer>
auto& unless_moved_from(const Pointer& pointer, const char* object) {
  if (pointer == nullptr) [[unlikely]]
    refuse_moved_from(object);
  return *pointer;
}

}  // namespace pianola
