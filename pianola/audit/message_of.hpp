#pragma once
#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace pianola::auditing {

/// What an exception says; without the stack that torch's errors carry.
inline std::string message_of(const std::exception& error) {
  const auto* const torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error == nullptr ? error.what() : torch_error->what_without_backtrace();
}

}  // namespace pianola::auditing
