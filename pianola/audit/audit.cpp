#include <pianola/audit/audit.hpp>

#include <pianola/audit/message_of.hpp>
#include <pianola/audit/session.hpp>
#include <pianola/audit/side_stream.hpp>
#include <pianola/core/error.hpp>

#include <exception>
#include <utility>

namespace pianola {
namespace {

using Tensors = std::vector<at::Tensor>;

// The step as the runs call it: its arguments, and what it makes of them.
struct Steps {
  std::function<Tensors(std::size_t run)> inputs;
  std::function<Tensors(const Tensors&)> call;
};

// Runs the step; false: it threw, which the session knows then.
bool run_once(auditing::Session& session, const Steps& steps, std::size_t run, bool observed) {
  try {
    const Tensors inputs = steps.inputs(run);
    observed ? session.begin({.inputs = inputs, .names = {}}) : session.begin_warmup();
    const Tensors results = steps.call(inputs);
    observed ? session.end(results) : session.end_warmup();
    return true;
  } catch (const std::exception& error) {
    session.end_by(std::current_exception(), auditing::message_of(error), {});
  }
  return false;
}

AuditReport audit_steps(const Steps& steps, const AuditOptions& options) {
  const auditing::SideStream side(options.device);
  auditing::Session session(options);
  const int runs = options.warmup + options.iterations;
  bool whole = true;
  for (int run = 0; run < runs && whole; ++run) {
    if (run > 0 && options.between) options.between(run);
    whole = run_once(session, steps, static_cast<std::size_t>(run), run >= options.warmup);
  }
  if (whole && options.trial) {
    const Tensors inputs = steps.inputs(static_cast<std::size_t>(runs - 1));
    session.try_capture([&] { (void)steps.call(inputs); },
                        [&] {
                          if (options.between) options.between(runs);
                        });
  }
  return session.finish();
}

}  // namespace

AuditReport audit(const std::function<void()>& step, const AuditOptions& options) {
  return audit_steps({.inputs = [](std::size_t) { return Tensors(); },
                      .call =
                          [&](const Tensors&) {
                            step();
                            return Tensors();
                          }},
                     options);
}

AuditReport audit(const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& step,
                  const std::vector<std::vector<at::Tensor>>& batches, const AuditOptions& options) {
  if (batches.empty()) {
    throw UsageError({.what = "there are no batches to call the step with",
                      .fix = "give one set of arguments for each iteration, or fewer: they are used in turn"});
  }
  return audit_steps({.inputs = [&](std::size_t run) { return batches[run % batches.size()]; }, .call = step}, options);
}

}  // namespace pianola
