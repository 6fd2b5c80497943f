#include <pianola/core/one_call.hpp>

#include <pianola/core/error.hpp>

#include <fmt/format.h>

namespace pianola {

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
