#include <pianola/graph/capture_failure.hpp>

#include <pianola/core/out_of_memory_error.hpp>
#include <pianola/trace/plain_check.hpp>

#include <c10/util/Exception.h>

#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace pianola::graph {
namespace {

// Out of memory is a class of its own: programs answer it by smaller batches, and other refusals not.
[[noreturn]] void throw_around(Diagnosis explanation) {
  if (explanation.rule == "PG908") std::throw_with_nested(OutOfMemoryError(std::move(explanation)));
  std::throw_with_nested(CaptureError(std::move(explanation)));
}

// Its reducer does (reducer.hpp: kDDPRuntimeLoggingSampleRate), and asks for the times when the next such iteration begins.
std::optional<Diagnosis> explain_timing(const std::optional<trace::OddWork>& communication, const c10::Error& error) {
  const bool is_refused =
      std::string_view(error.what()).find("not permitted when stream is capturing") != std::string_view::npos;
  if (!communication || communication->oddity != trace::Oddity::data_parallel || !is_refused) return std::nullopt;
  return Diagnosis{.what =
                       "DistributedDataParallel times its first ten iterations, and each hundredth, with events that "
                       "no capture can hold",
                   .fix = "warm up 11 times: warmup=11; and let nothing in the step wait for the device",
                   .rule = "PG1104"};
}

}  // namespace

void throw_explained(const std::exception_ptr& error, const BrokenOff& seen, const Backend& backend) {
  const OpTrace* const trace = seen.trace ? &*seen.trace : nullptr;
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& torch_error) {
    const bool no_memory = dynamic_cast<const c10::OutOfMemoryError*>(&torch_error) != nullptr;
    if (seen.odd_work && !no_memory) std::throw_with_nested(CaptureError(seen.odd_work->diagnosis()));
    if (auto timing = explain_timing(seen.communication, torch_error)) throw_around(*std::move(timing));
    auto explanation = backend.explain(torch_error, trace);
    if (!explanation) throw;
    throw_around(*std::move(explanation));
  } catch (const std::runtime_error& other) {
    // TorchScript's interpreter throws an error of its own for what an operation in it threw.
    constexpr std::string_view kInterpreter = "The following operation failed in the TorchScript interpreter";
    const auto offence = backend.offence(trace);
    if (!offence || !std::string_view(other.what()).starts_with(kInterpreter)) throw;
    std::throw_with_nested(CaptureError(*offence));
  }
}

}  // namespace pianola::graph
