#include <pianola/trace/observer_failure.hpp>

#include <pianola/core/out_of_memory_error.hpp>

#include <c10/util/Exception.h>

#include <exception>
#include <new>
#include <string_view>
#include <utility>

namespace pianola::trace {

void ObserverFailure::note(const std::string& op) noexcept {
  const std::lock_guard lock(mutex_);
  if (failed_) return;
  failed_ = true;
  try {
    describe(op);
  } catch (...) {
    found_no_memory_ = true;  // for the words
  }
}

// Of the exception that is being handled.
void ObserverFailure::describe(const std::string& op) {
  try {
    throw;
  } catch (const c10::Error& error) {
    found_no_memory_ =
        dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
        std::string_view(error.what_without_backtrace()).find("DefaultCPUAllocator") != std::string_view::npos;
    what_ = op + " on: " + error.what_without_backtrace();
  } catch (const std::bad_alloc&) {
    found_no_memory_ = true;
    what_ = op + " on: the host has no memory left";
  } catch (const std::exception& error) {
    found_no_memory_ = dynamic_cast<const OutOfMemoryError*>(&error) != nullptr;
    what_ = op + " on: " + error.what();
  } catch (...) {
    what_ = op + " on";
  }
}

std::optional<Diagnosis> ObserverFailure::diagnosis() const {
  const std::lock_guard lock(mutex_);
  if (!failed_) return std::nullopt;
  return Diagnosis{.what = "the operations of the step could not be recorded, from " +
                           (what_.empty() ? std::string("one of them on") : what_) +
                           "; what the step wrote since may not have been put back",
                   .fix = found_no_memory_ ? "free memory, or use smaller batches"
                                           : "this is a fault of Pianola: report it with this message",
                   .rule = found_no_memory_ ? "PG908" : ""};
}

void throw_failure(Diagnosis failure) {
  if (failure.rule == "PG908") throw OutOfMemoryError(std::move(failure));
  throw CaptureError(std::move(failure));
}

}  // namespace pianola::trace
