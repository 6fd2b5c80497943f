#include <pianola/core/one_call.hpp>

#include <pianola/core/error.hpp>

#include <fmt/format.h>

#include <thread>

namespace pianola {

void OneCall::enter_behind(std::uintptr_t running, const char* call, const char* subject) {
  while (running == kSomebodyLooks) {
    std::this_thread::yield();
    running = 0;
    if (thread_.compare_exchange_strong(running, this_thread(), std::memory_order_acquire)) return;
  }
  refuse(running, call, subject);
}

void OneCall::begin_look(const char* call, const char* subject) {
  std::uintptr_t running = 0;
  while (!thread_.compare_exchange_strong(running, kSomebodyLooks, std::memory_order_acquire)) {
    if (running != kSomebodyLooks) refuse(running, call, subject);
    running = 0;
    std::this_thread::yield();
  }
}

void OneCall::refuse(std::uintptr_t running, const char* call, const char* subject) {
  if (running == this_thread()) {
    throw UsageError({.what = fmt::format("{} was called on {} inside another call of the same one", call, subject),
                      .fix = "call it when the other one has returned"});
  }
  throw UsageError(
      {.what = fmt::format("{} was called on {} while another thread is in a call of it; one call at a time is allowed",
                           call, subject),
       .fix = "give each thread its own, or take a lock around the calls"});
}

}  // namespace pianola
