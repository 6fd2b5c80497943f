#include <pianola/graph/recording.hpp>

#include <pianola/graph/capture_check.hpp>
#include <pianola/graph/open_capture.hpp>
#include <pianola/trace/observer_failure.hpp>

#include <ATen/autocast_mode.h>

namespace pianola::graph {

// Casts that autocast cached while warming up would be read by the graph but made outside it: they would stay as they
// are while the parameters move on.
void Recording::begin(const std::vector<trace::OpObserver*>& others, trace::ForRanks patience) {
  began_ = std::chrono::steady_clock::now();
  const bool executes = backend_.executes_while_recording();
  at::autocast::clear_cache();
  std::vector<trace::OpObserver*> observers = before_.begin_recording(executes);
  capture_stage() = CaptureStage::recording;
  islands_.begin_recording();
  backend_.begin(options_);
  region_uses_.emplace();
  if (options_.trace) {
    observers.push_back(&recorder_.emplace(recorder_options()));
    using Of = trace::AllocatorWatch::Of;
    observers.push_back(&blocks_.emplace(executes ? Of::with_frees : Of::cuda));
  }
  observers.insert(observers.end(), others.begin(), others.end());
  for (trace::OpObserver* observer : backend_.observers()) observers.push_back(observer);
  watching_.emplace(std::move(observers), patience);
}

TraceRecorderOptions Recording::recorder_options() {
  TraceRecorderOptions options = backend_.recorder_options();
  options.call_sites = true;
  return options;
}

Recorded Recording::end() {
  check_plain(*watching_, options_.communication);
  const std::optional<Diagnosis> failure = watching_->failure();
  watching_.reset();
  islands_.end_run();
  Recorded recorded;
  recorded.time = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - began_);
  if (region_uses_->any_ran()) recorded.region = trace::NumericRegion::current_number();
  recorded.region_uses = region_uses_->take();
  region_uses_.reset();
  if (recorder_) recorded.trace = std::make_shared<const OpTrace>(recorder_->take());

  if (failure) trace::throw_failure(*failure);  // what the observers say is not the whole
  if (auto offence = backend_.offence(recorded.trace.get())) throw CaptureError(*std::move(offence));
  if (blocks_) {
    recorded.blocks = trace::blocks_on(before_.generators().front().device(), blocks_->blocks());
    recorded.operations = blocks_->operations();
  }
  blocks_.reset();
  return recorded;
}

BrokenOff Recording::break_off() {
  BrokenOff seen;
  if (watching_) {
    seen.odd_work = odd_work_of(*watching_, options_.communication);
    seen.communication = watching_->communication();
  }
  watching_.reset();
  if (recorder_) seen.trace = recorder_->take();
  return seen;
}

void Recording::undo() noexcept {
  watching_.reset();
  blocks_.reset();
  islands_.end_run();
}

void Recording::leave_behind() noexcept {
  if (watching_) watching_->disarm();
  if (blocks_) blocks_->stop();
}

}  // namespace pianola::graph
