#include <pianola/profile/read/chrome_trace.hpp>

#include <pianola/core/error.hpp>
#include <pianola/profile/read/chrome_document.hpp>
#include <pianola/profile/read/trace_input.hpp>

#include <fmt/format.h>

#include <string>

namespace pianola {
namespace {

using profiling::ChromeDocument;

std::string byte_of(const ChromeDocument& document, bool compressed) {
  return fmt::format("byte {}{}", document.position, compressed ? " of the unpacked text" : "");
}

void refuse_damaged(const profiling::TraceInput& input, const ChromeDocument& document, const std::string& name) {
  if (input.damage().empty()) return;
  throw UsageError({.what = fmt::format("the trace '{}' cannot be read to its end: {}", name, input.damage()),
                    .where = fmt::format("after {}", byte_of(document, input.compressed())),
                    .fix = input.compressed() ? "it was damaged after it was written (gzip -t FILE shows it): copy or "
                                                "record it again"
                                              : "copy it to another disk, or record it again"});
}

void refuse_without_events(const ChromeDocument& document, bool compressed, const std::string& name) {
  if (document.events > 0) return;
  const std::string fix = "name a trace of torch.profiler, as export_chrome_trace() writes it";
  if (document.cut && document.position == 0) {
    throw UsageError({.what = fmt::format("the trace '{}' is empty{}", name, compressed ? " once unpacked" : ""),
                      .fix = "record it again; a profiler writes the file when it stops"});
  }
  if (document.cut && document.begins) {
    throw UsageError({.what = fmt::format("the trace '{}' is cut off before its first event ends", name),
                      .where = byte_of(document, compressed),
                      .fix = "record it again; wait until the profiler has written the file"});
  }
  if (!document.complete) {
    throw UsageError({.what = fmt::format("'{}' is no Chrome trace: it is not JSON", name),
                      .where = fmt::format("{}: {}", byte_of(document, compressed), document.reason),
                      .fix = fix});
  }
  if (document.has_events) {
    throw UsageError({.what = fmt::format("the trace '{}' has no events", name),
                      .fix = "record it again, with work between the profiler's start and stop; or " + fix});
  }
  throw UsageError(
      {.what = fmt::format("'{}' is JSON, but no Chrome trace: it has no \"traceEvents\"", name), .fix = fix});
}

void refuse_too_large(const ChromeDocument& document, bool compressed, const std::string& name) {
  if (document.too_large.empty()) return;
  constexpr std::size_t kShown = 40;
  throw UsageError({.what = fmt::format("the trace '{}' has the number {}, which is too large for any", name,
                                        document.too_large.substr(0, kShown)),
                    .where = byte_of(document, compressed),
                    .fix = "it was damaged, or what wrote it failed: record it again"});
}

std::string how_it_ended(const ChromeDocument& document, bool compressed) {
  const std::string place = byte_of(document, compressed);
  if (document.cut) return fmt::format("the file is cut off at {}: what came before was read", place);
  return fmt::format("the file is no JSON from {} on ({}): what came before was read", place, document.reason);
}

/// What a reader of the timeline has to know of the file.
void note(Timeline& timeline, const ChromeDocument& document, bool compressed) {
  timeline.notes.insert(timeline.notes.end(), document.notes.begin(), document.notes.end());
  if (!document.complete) timeline.notes.push_back(how_it_ended(document, compressed));
  if (timeline.work.empty() && timeline.calls.empty() && timeline.ranges.empty()) {
    timeline.notes.push_back(
        fmt::format("none of its {} events is work of a device, a call of CUDA or a range of torch", document.events));
  }
}

}  // namespace

Timeline read_chrome_trace(const std::filesystem::path& file) {
  const std::string name = file.string();
  Timeline timeline;
  timeline.source = fmt::format("Chrome trace '{}'", name);
  profiling::TraceInput input(file);
  const ChromeDocument document = profiling::read_chrome_document(input.stream(), timeline);
  refuse_damaged(input, document, name);
  refuse_too_large(document, input.compressed(), name);
  refuse_without_events(document, input.compressed(), name);
  note(timeline, document, input.compressed());
  return timeline;
}

}  // namespace pianola
