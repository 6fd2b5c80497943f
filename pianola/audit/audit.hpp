#pragma once
#include <pianola/audit/options.hpp>
#include <pianola/audit/report.hpp>
#include <pianola/core/export.hpp>

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace pianola {

/// Runs `step` eagerly a few times, watches every operation, compares the runs, and reports everything that would break a
/// capture or make replays wrong: each with the rule, the operation, the source line, what was seen and what to do.
///
///     pianola::AuditReport report = pianola::audit([&] { train_step(model, x, y, optimizer); },
///                                                  {.between = [&](int) { scheduler.step(); }});
///     std::cout << report.to_text();
///
/// What the step throws becomes a finding (PG1202). State is put back at the end, tensors and generators; what `between`
/// and the step do to other variables of the host is not.
///
/// @throws UsageError  An option is out of range, or a capture is open on this thread.
/// Threads:  The step runs on this thread; what other threads do at the same time is not watched.
/// Stream:   On CUDA the runs use a side stream, ordered after the current one's work and before its next.
[[nodiscard]] PIANOLA_API AuditReport audit(const std::function<void()>& step, const AuditOptions& options = {});

/// The same for a step of tensors, called with the batches in turn. A graph of it copies its inputs in, so that other
/// memory is no hazard; other shapes are.
[[nodiscard]] PIANOLA_API AuditReport
audit(const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& step,
      const std::vector<std::vector<at::Tensor>>& batches, const AuditOptions& options = {});

}  // namespace pianola
