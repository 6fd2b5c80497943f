#include <pianola/graph/capture_session.hpp>

#include <pianola/graph/add_time.hpp>
#include <pianola/graph/branch_plan.hpp>
#include <pianola/graph/capture_check.hpp>
#include <pianola/graph/capture_failure.hpp>
#include <pianola/graph/memory_limit.hpp>
#include <pianola/graph/open_capture.hpp>
#include <pianola/graph/rank_agreement.hpp>
#include <pianola/graph/update_check.hpp>
#include <pianola/trace/numeric_region.hpp>
#include <pianola/trace/plain_check.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>

#include <fmt/format.h>

#include <utility>

namespace pianola::graph {
namespace {

// Once a run has come to its end, ranks that do not come are late, and wait for none of this run's.
trace::ForRanks patience_with_ranks(int runs_before) {
  return runs_before > 0 || ObservedBefore::is_true() ? trace::ForRanks::as_long_as_it_takes : trace::ForRanks::a_while;
}

std::vector<ByteSpan> bytes_of_blocks(const std::vector<trace::StepBlock>& blocks) {
  std::vector<ByteSpan> bytes;
  bytes.reserve(blocks.size());
  for (const trace::StepBlock& one : blocks) {
    bytes.push_back({.begin = one.address, .end = one.address + one.life.bytes});
  }
  return bytes;
}

}  // namespace

CaptureSession::CaptureSession(Backend& backend, const CaptureOptions& options, std::optional<EarlierCapture> earlier)
    : backend_(backend), options_(options), earlier_(earlier) {
  if (!options.pool.empty() && options.pool.state()->plans_all()) options_.plan_memory = true;
  check_capture(options_);
  if (options_.plan_memory && options_.branches == kAutoBranches) options_.branches = 0;
  if (backend.executes_while_recording()) options_.plan_memory = false;
  backend.check_may_capture(options);
  if (!options.pool.empty()) {
    const char* const call = earlier ? "update()" : "capture()";
    PoolState& pool = *options.pool.state();
    pool.check_not_allocated_into(call);
    pool.check_awake(call);  // else a resume() at this moment would be refused
    in_pool_.emplace(pool.captures(), call, "a graph pool");
    pool.check_awake(call);
  }
  std::vector<at::Generator> generators = backend.default_generators();
  generators.insert(generators.end(), options.generators.begin(), options.generators.end());
  if (options.trace && !options.accept_capture_path && PathCheck::can_tell(options.warmup)) path_.emplace();
  before_.remember(std::move(generators), options.restore, options.differentiates);
  stream_ = backend.enter(options);
  capture_stage() = CaptureStage::warm_up;
  capture_device() = backend.executes_while_recording() ? c10::kCPU : c10::kCUDA;
  open_generators() = &before_.generators();
}

CaptureSession::~CaptureSession() {
  if (!finished_) abandon();
  capture_stage() = CaptureStage::none;
  open_generators() = nullptr;
}

void CaptureSession::warm_up(const std::function<void()>& step) {
  const AddTime timed(warmup_time_);
  std::optional<trace::RegionUses> region_uses;
  if (options_.restore) region_uses.emplace();
  std::optional<PoolState::WarmUp> in_pool;
  if (in_pool_ && options_.warmup != 0) in_pool.emplace(*options_.pool.state());
  for (int run = 0; run < options_.warmup; ++run) run_eagerly(step, run);
}

// Autocast keeps the weights it has cast while its region lasts. A run that finds them cast already takes another path
// than the recording: it records no casts, and its backward does not reach the weights.
void CaptureSession::run_eagerly(const std::function<void()>& step, int run) {
  at::autocast::clear_cache();
  std::vector<trace::OpObserver*> observers = backend_.warmup_observers();
  for (trace::OpObserver* observer : before_.begin_eager_run()) observers.push_back(observer);
  if (path_ && run >= PathCheck::first_call(options_.warmup)) observers.push_back(&path_->next_call());
  std::optional<trace::BlockLog> memory;
  if ((options_.memory_limit != 0 || options_.plan_memory) && run + 1 == options_.warmup) {
    observers.push_back(&memory.emplace());
  }
  islands_.begin_eager_run();
  const trace::OpStream watch(std::move(observers), patience_with_ranks(run));
  step();
  watch.check();
  check_plain(watch, options_.communication);
  communicates_ = watch.communication().has_value();
  if (memory) use_memory_of(*memory);
}

void CaptureSession::use_memory_of(const trace::BlockLog& run) {
  memory::StepRun known = trace::run_of(run.blocks(before_.generators().front().device()), run.operations());
  check_memory(known, options_.memory_limit, options_.plan_memory, options_.pool.state().get());
  if (options_.plan_memory) run_to_plan_by_ = std::move(known);
}

// Parts that stay eager run in no recording that is dropped, and other ranks may make none.
bool CaptureSession::has_to_record_ahead() const {
  const bool has_islands = islands_.any();
  const bool may_differ = options_.branches > 1 || options_.accept_capture_path;
  return run_to_plan_by_ && may_differ && options_.trace && !has_islands && !communicates_;
}

void CaptureSession::record_ahead(const std::function<void()>& step) {
  if (!has_to_record_ahead()) return;
  backend_.record_ahead(*run_to_plan_by_);
  start_recording({&dropout_});
  step();
  Recorded recorded = recording_->end();
  check_dropout();
  run_to_plan_by_ = trace::run_of(recorded.blocks, std::move(recorded.operations));
  const std::optional<memory::StepRun> on_lanes =
      backend_.end_ahead(*recorded.trace, *run_to_plan_by_, bytes_of_blocks(recorded.blocks));
  recording_.reset();
  capture_stage() = CaptureStage::warm_up;
  before_.put_generators_back();
  if (on_lanes) memory::keep_apart_on_main_stream(*run_to_plan_by_, *on_lanes);
  check_memory(run_to_plan_by_, options_.memory_limit, options_.plan_memory, options_.pool.state().get());
}

void CaptureSession::begin() {
  if (options_.plan_memory && options_.warmup == 0) run_to_plan_by_ = *RunToPlanBy::known();
  if (run_to_plan_by_) backend_.plan_memory(*std::exchange(run_to_plan_by_, std::nullopt));
  start_recording(observers());
}

void CaptureSession::start_recording(const std::vector<trace::OpObserver*>& others) {
  dropout_.begin_recording(before_.generators().front().device());
  recording_.emplace(backend_, options_, before_, islands_);
  recording_->begin(others, patience_with_ranks(options_.warmup));
}

// Of the recording that counts: for what is checked at its end, and what replays go by.
std::vector<trace::OpObserver*> CaptureSession::observers() {
  const c10::DeviceType device = backend_.executes_while_recording() ? c10::kCPU : c10::kCUDA;
  std::vector<trace::OpObserver*> all = {&dropout_, &communication_.emplace(device)};
  if (path_) all.push_back(&path_->recording());
  const bool may_sleep = !options_.pool.empty() && options_.pool.state()->can_sleep();
  if (options_.check == CheckMode::strict) {
    all.push_back(&outside_.emplace());
  } else if (may_sleep && options_.trace) {
    all.push_back(&asleep_.emplace());
  }
  return all;
}

void CaptureSession::check_dropout() const {
  if (auto offence = dropout_.offence_of_recording()) throw CaptureError(*std::move(offence));
}

CaptureResult CaptureSession::commit() {
  CaptureResult result = describe(recording_->end());
  const OpTrace* const trace = result.trace.get();
  end_in_backend(result);
  capture_stage() = CaptureStage::none;
  if (!communication_->groups().empty() && !backend_.executes_while_recording()) {
    // Before anything is replayed. On the CPU nothing is compared: there the host waits in a replay as it does eagerly, in any order.
    const AddTime timed(result.agreement_time);
    agree_with_other_ranks(*communication_, trace);
  }
  backend_.choose(trace, [this](const c10::Storage& storage) { before_.save(storage); });
  if (earlier_) {
    const AddTime timed(result.end_time);
    take_over_from_earlier(*trace);
  }
  const std::vector<at::Tensor> new_gradients =
      outside_ ? before_.leaves_with_new_gradients() : std::vector<at::Tensor>();
  put_back(result.warnings);
  stream_.reset();
  in_pool_.reset();
  finished_ = true;
  hand_over_watches(result, new_gradients);
  return result;
}

CaptureResult CaptureSession::describe(Recorded recorded) const {
  CaptureResult result;
  result.trace = std::move(recorded.trace);
  result.blocks = std::move(recorded.blocks);
  result.warmup_time = warmup_time_;
  result.capture_time = recorded.time;
  result.wanted_branches = wants_branches(options_);
  result.under_function_mode = trace::function_modes().users;
  result.region = recorded.region;
  result.region_uses = std::move(recorded.region_uses);
  for (const at::Tensor& input : options_.inputs) {
    result.input_bytes += input.nbytes();
    const auto begin = reinterpret_cast<std::uintptr_t>(trace::address_of(input));
    result.inputs.push_back({.begin = begin, .end = begin + trace::span_bytes_of(input)});
  }
  result.inputs = merged(std::move(result.inputs));
  return result;
}

void CaptureSession::end_in_backend(CaptureResult& result) {
  const AddTime timed(result.end_time);
  check_dropout();
  if (outside_ && !backend_.executes_while_recording()) {
    if (auto obstacle = outside_->host_tensors().obstacle()) throw CaptureError(*std::move(obstacle));
  }
  if (path_) {
    if (auto other_path = path_->difference()) throw CaptureError(*std::move(other_path));
    if (const auto number = path_->changing_number()) {
      const std::string place = number->where.empty() ? "" : fmt::format(" ({})", number->where);
      result.warnings.push_back(fmt::format("{}{}: {}", number->what, place, number->fix));
    }
    path_.reset();
  }
  if (!communication_->groups().empty()) backend_.keep_executable_apart();
  if (auto warning = backend_.end(result.trace.get(), options_)) result.warnings.push_back(*std::move(warning));
}

void CaptureSession::take_over_from_earlier(const OpTrace& trace) {
  if (auto difference = other_operations(*earlier_->trace, trace)) throw CaptureError(*std::move(difference));
  backend_.take_over(*earlier_->backend, *earlier_->trace, trace);
}

void CaptureSession::put_back(std::vector<std::string>& warnings) {
  if (before_.wrote_lazy_state()) {
    warnings.emplace_back(
        "the first run of the step made state that later runs write (an optimizer's, say); it stays as warm-up left "
        "it: make such state before the capture");
  }
  before_.put_back(/*keep_gradients=*/true);
  for (const std::string& device : before_.moved_generators()) {
    warnings.push_back(
        fmt::format("another thread drew from a generator of {} during the capture: the generator is not put back and "
                    "continues after the numbers that the capture drew",
                    device));
  }
}

// What they have seen, replays go by.
void CaptureSession::hand_over_watches(CaptureResult& result, const std::vector<at::Tensor>& new_gradients) {
  const bool executes = backend_.executes_while_recording();
  result.dropout = std::move(dropout_);
  result.groups = communication_->names();
  if (!executes) result.collectives = communication_->take_off_clocks();
  communication_.reset();
  if (asleep_) {
    result.asleep = std::make_unique<MovedAsleep>(options_.pool.state(), asleep_->alive(), options_.names);
  }
  if (!outside_) return;
  result.outside.emplace(outside_->alive(), options_.names);
  result.outside->watch_gradients(new_gradients);
  if (!executes) result.outside->watch_values(outside_->host_tensors());
}

void CaptureSession::fail(std::exception_ptr error) {
  const BrokenOff seen = recording_ ? recording_->break_off() : BrokenOff{};
  abandon();
  throw_explained(error, seen, backend_);
}

void CaptureSession::abandon() noexcept {
  if (finished_) return;
  finished_ = true;
  if (recording_) recording_->undo();
  backend_.abandon();
  islands_.end_run();
  if (communication_ && !backend_.executes_while_recording()) (void)communication_->take_off_clocks();
  capture_stage() = CaptureStage::none;
  try {
    before_.put_back(/*keep_gradients=*/false);
    dropout_.forget_recording();
    stream_.reset();
    in_pool_.reset();
  } catch (const std::exception& error) {
    // The first error is on its way to the caller; this one must not replace it.
    TORCH_WARN("pianola: could not put back all that a failed capture wrote: ", error.what());
  }
}

void CaptureSession::leave_behind() noexcept {
  finished_ = true;
  if (recording_) recording_->leave_behind();
  backend_.abandon();
  try {
    before_.put_back(/*keep_gradients=*/false);
    dropout_.forget_recording();
  } catch (const std::exception& error) {
    TORCH_WARN("pianola: could not put back all that an abandoned capture wrote: ", error.what());
  }
  in_pool_.reset();
}

CaptureResult record_step(Backend& backend, const std::function<void()>& step, const CaptureOptions& options,
                          std::optional<EarlierCapture> earlier) {
  CaptureSession session(backend, options, earlier);
  session.warm_up(step);
  try {
    session.record_ahead(step);
  } catch (...) {
    session.fail(std::current_exception());
  }
  session.begin();
  try {
    step();
  } catch (...) {
    session.fail(std::current_exception());
  }
  return session.commit();
}

void warm_up(c10::Device device, const std::function<void()>& step, const CaptureOptions& options) {
  const std::unique_ptr<Backend> backend = make_backend(device);
  CaptureOptions only_warm_up = options;
  only_warm_up.accept_capture_path = true;  // nothing is recorded here
  CaptureSession session(*backend, only_warm_up);
  session.warm_up(step);
}

}  // namespace pianola::graph
