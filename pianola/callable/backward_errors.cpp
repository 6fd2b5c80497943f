#include <pianola/callable/backward_errors.hpp>

#include <atomic>

namespace pianola::callable {
namespace {

using Rethrow = void (*)(const std::exception_ptr&);
std::atomic<Rethrow> translator = nullptr;

}  // namespace

void translate_backward_errors(Rethrow rethrow) { translator = rethrow; }

void throw_from_backward(const std::exception_ptr& error) {
  if (const Rethrow rethrow = translator) rethrow(error);
  std::rethrow_exception(error);
}

}  // namespace pianola::callable
