#include <pianola/graph/capture_session.hpp>

#include <pianola/core/number_check.hpp>
#include <pianola/core/out_of_memory_error.hpp>
#include <pianola/distributed/agreement.hpp>
#include <pianola/graph/branch_plan.hpp>
#include <pianola/graph/memory_limit.hpp>
#include <pianola/graph/open_capture.hpp>
#include <pianola/graph/update_check.hpp>
#include <pianola/trace/plain_check.hpp>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>

#include <fmt/format.h>

#include <exception>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace pianola::graph {
namespace {

using Clock = std::chrono::steady_clock;

// Out of memory is a class of its own: programs answer it by smaller batches, and other refusals not.
[[noreturn]] void throw_explained(Diagnosis explanation) {
  if (explanation.rule == "PG908") std::throw_with_nested(OutOfMemoryError(std::move(explanation)));
  std::throw_with_nested(CaptureError(std::move(explanation)));
}

std::chrono::microseconds since(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start);
}

void check_plan(const CaptureOptions& options) {
  if (options.warmup == 0 && RunToPlanBy::known() == nullptr) {
    throw UsageError({.what = "plan_memory needs a warm-up run, which shows the lives of the blocks, and warmup = 0",
                      .fix = "warm up once or more"});
  }
}

void check(const CaptureOptions& options) {
  check_at_least(0, "warmup", options.warmup);
  for (const at::Generator& generator : options.generators) {
    if (!generator.defined()) throw UsageError({.what = "an entry of 'generators' is undefined"});
  }
  check_branches(options.branches, options.parallel);
  if (wants_branches(options) && !options.trace) {
    throw UsageError({.what = fmt::format("branches = {} needs the trace, and 'trace' is off", options.branches),
                      .fix = "leave 'trace' on, or capture without 'branches'"});
  }
  if (options.memory_limit != 0 && options.warmup == 0) {
    throw UsageError({.what = "memory_limit needs a warm-up run, which shows what the step takes, and warmup = 0",
                      .fix = "warm up once or more, or ask pianola::predict_memory() before"});
  }
  if (options.plan_memory) check_plan(options);
  if (options.check == CheckMode::strict && !options.trace) {
    throw UsageError({.what = "check = strict needs the trace, and 'trace' is off",
                      .fix = "leave 'trace' on, or capture with CheckMode::standard"});
  }
  if (allocations_into_pools() != 0) {
    throw UsageError(
        {.what = "a capture was begun while what this thread allocates goes to a pool",
         .fix = "capture behind the end of GraphPool::Allocations, in Python of `with pool.allocations()`"});
  }
  if (capture_is_open()) {
    throw UsageError({.what = "a capture is open on this thread already",
                      .fix = "captures do not nest: end the outer one first, or capture both parts as one step"});
  }
}

// Once a run has come to its end, ranks that do not come are late, and wait for none of this run's.
trace::ForRanks patience_with_ranks(int runs_before) {
  return runs_before > 0 || ObservedBefore::is_true() ? trace::ForRanks::as_long_as_it_takes : trace::ForRanks::a_while;
}

// Of the collective with this number in the step.
std::string place_of_collective(const OpTrace& trace, std::uint32_t number) {
  for (const OpRecord& op : trace.ops()) {
    if (op.info->collective && number-- == 0) return trace.place(op);
  }
  return "";
}

// What the step would meet, and what it has met.
void check_plain(const CaptureOptions& options) {
  using trace::Oddity;
  if (const Oddity modes = trace::oddity_of_modes(); modes != Oddity::none) {
    throw CaptureError(trace::refuse_modes(modes, "a capture"));
  }
  for (std::size_t i = 0; i < options.inputs.size(); ++i) {
    const Oddity oddity = trace::oddity_of_input(options.inputs[i]);
    if (oddity == Oddity::none) continue;
    throw CaptureError(trace::refuse_input(oddity, fmt::format("input {}", i), options.inputs[i]));
  }
}

// The first thing in the step that its graph cannot hold.
std::optional<trace::OddWork> odd_work_of(const trace::OpStream& stream, bool may_communicate) {
  std::optional<trace::OddWork> odd = stream.odd_work();
  return odd || may_communicate ? odd : stream.communication();
}

void check_plain(const std::optional<trace::OpStream>& stream, bool may_communicate) {
  if (!stream) return;
  if (const auto odd = odd_work_of(*stream, may_communicate)) throw CaptureError(odd->diagnosis());
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

CaptureSession::CaptureSession(Backend& backend, const CaptureOptions& options, std::optional<EarlierCapture> earlier)
    : backend_(backend), options_(options), earlier_(earlier) {
  if (!options.pool.empty() && options.pool.state()->plans_all()) options_.plan_memory = true;
  check(options_);
  if (options_.plan_memory && options_.branches == kAutoBranches) options_.branches = 0;
  if (backend.executes_while_recording()) options_.plan_memory = false;
  check_plain(options);
  backend.check_may_capture(options);
  if (!options.pool.empty()) {
    const char* const call = earlier ? "update()" : "capture()";
    in_pool_.emplace(options.pool.state()->captures(), call, "a graph pool");
    options.pool.state()->check_awake(call);
  }
  generators_ = backend.default_generators();
  generators_.insert(generators_.end(), options.generators.begin(), options.generators.end());
  if (options.trace && !options.accept_capture_path && PathCheck::can_tell(options.warmup)) path_.emplace();
  generator_states_.tell_others_apart();
  if (options.restore) generator_states_.remember(generators_);
  stream_ = backend.enter(options);
  capture_stage() = CaptureStage::warm_up;
  capture_device() = backend.executes_while_recording() ? c10::kCPU : c10::kCUDA;
  open_generators() = &generators_;
}

CaptureSession::~CaptureSession() {
  if (!finished_) abandon();
  capture_stage() = CaptureStage::none;
  open_generators() = nullptr;
}

// Autocast keeps the weights it has cast while its region lasts. A run that finds them cast already takes another path
// than the recording: it records no casts, and its backward does not reach the weights.
void CaptureSession::warm_up(const std::function<void()>& step) {
  const auto start = Clock::now();
  if (options_.restore) region_uses_.emplace();
  std::optional<PoolState::WarmUp> in_pool;
  if (in_pool_ && options_.warmup != 0) in_pool.emplace(*options_.pool.state());
  for (int run = 0; run < options_.warmup; ++run) {
    at::autocast::clear_cache();
    std::vector<trace::OpObserver*> observers = backend_.warmup_observers();
    if (options_.restore) {
      written_.begin_run();
      observers.insert(observers.end(), {&written_, &generator_states_});
    }
    if (path_ && run >= PathCheck::first_call(options_.warmup)) observers.push_back(&path_->next_call());
    std::optional<trace::BlockLog> memory;
    if ((options_.memory_limit != 0 || options_.plan_memory) && run + 1 == options_.warmup) {
      observers.push_back(&memory.emplace());
    }
    open_islands_.reset();
    open_islands_.emplace(islands_.emplace());
    const std::optional<trace::OpStream> watch(std::in_place, std::move(observers), patience_with_ranks(run));
    step();
    watch->check();
    check_plain(watch, options_.communication);
    communicates_ = watch->communication().has_value();
    if (memory) use_memory_of(*memory);
  }
  region_uses_.reset();
  warmup_time_ = since(start);
}

void CaptureSession::use_memory_of(const trace::BlockLog& run) {
  memory::StepRun known = trace::run_of(run.blocks(generators_.front().device()), run.operations());
  check_memory(known, options_.memory_limit, options_.plan_memory, options_.pool.state().get());
  if (options_.plan_memory) run_to_plan_by_ = std::move(known);
}

// Parts that stay eager run in no recording that is dropped, and other ranks may make none.
bool CaptureSession::has_to_record_ahead() const {
  const bool has_islands = islands_ && !islands_->notes().empty();
  const bool may_differ = options_.branches > 1 || options_.accept_capture_path;
  return run_to_plan_by_ && may_differ && options_.trace && !has_islands && !communicates_;
}

void CaptureSession::record_ahead(const std::function<void()>& step) {
  if (!has_to_record_ahead()) return;
  backend_.record_ahead(*run_to_plan_by_);
  region_uses_.emplace();
  start_recording();
  std::vector<trace::OpObserver*> observers = {&recorder_.emplace(recorder_options()),
                                               &blocks_.emplace(trace::AllocatorWatch::Of::cuda)};
  if (options_.restore) observers.push_back(&written_);
  for (trace::OpObserver* observer : backend_.observers()) observers.push_back(observer);
  watching_.emplace(std::move(observers), patience_with_ranks(options_.warmup));
  step();
  watching_->check();
  check_plain(watching_, options_.communication);
  watching_.reset();
  open_islands_.reset();
  const OpTrace trace = recorder_->take();
  if (auto offence = backend_.offence(&trace)) throw CaptureError(std::move(*offence));
  const std::vector<trace::StepBlock> handed_out = blocks_->blocks(generators_.front().device());
  run_to_plan_by_ = trace::run_of(handed_out, blocks_->operations());
  blocks_.reset();
  std::vector<ByteSpan> places;
  for (const trace::StepBlock& one : handed_out) {
    places.push_back({.begin = one.address, .end = one.address + one.life.bytes});
  }
  const std::optional<memory::StepRun> on_lanes = backend_.end_ahead(trace, *run_to_plan_by_, places);
  recording_ = false;
  recorder_.reset();
  region_uses_.reset();
  capture_stage() = CaptureStage::warm_up;
  put_generators_back();
  if (on_lanes) memory::keep_apart_on_main_stream(*run_to_plan_by_, *on_lanes);
  check_memory(run_to_plan_by_, options_.memory_limit, options_.plan_memory, options_.pool.state().get());
}

TraceRecorderOptions CaptureSession::recorder_options() {
  TraceRecorderOptions options = backend_.recorder_options();
  options.call_sites = true;
  return options;
}

// Casts that autocast cached while warming up would be read by the graph but made outside it: they would stay as they
// are while the parameters move on.
void CaptureSession::start_recording() {
  at::autocast::clear_cache();
  written_.save_writes(backend_.executes_while_recording());
  if (options_.restore) {
    written_.begin_run();
    put_generators_back();
  } else {
    generator_states_.remember(generators_);
  }
  recording_ = true;
  capture_stage() = CaptureStage::recording;
  open_islands_.reset();
  std::vector<IslandNotes> run_before = islands_ ? islands_->notes() : std::vector<IslandNotes>();
  open_islands_.emplace(islands_.emplace(std::move(run_before)));
  backend_.begin(options_);
}

void CaptureSession::begin() {
  began_ = Clock::now();
  if (options_.plan_memory && options_.warmup == 0) run_to_plan_by_ = *RunToPlanBy::known();
  if (run_to_plan_by_) backend_.plan_memory(*std::exchange(run_to_plan_by_, std::nullopt));
  start_recording();
  region_uses_.emplace();

  std::vector<trace::OpObserver*> observers = {
      &dropout_, &communication_.emplace(backend_.executes_while_recording() ? c10::kCPU : c10::kCUDA)};
  if (options_.restore || backend_.executes_while_recording()) observers.push_back(&written_);
  if (backend_.executes_while_recording()) observers.push_back(&generator_states_);
  if (options_.trace) {
    observers.push_back(&recorder_.emplace(recorder_options()));
    using Of = trace::AllocatorWatch::Of;
    observers.push_back(&blocks_.emplace(backend_.executes_while_recording() ? Of::with_frees : Of::cuda));
  }
  if (path_) observers.push_back(&path_->recording());
  if (options_.check == CheckMode::strict) observers.push_back(&outside_.emplace());
  for (trace::OpObserver* observer : backend_.observers()) observers.push_back(observer);
  watching_.emplace(std::move(observers), patience_with_ranks(options_.warmup));
}

CaptureResult CaptureSession::commit() {
  check_plain(watching_, options_.communication);
  const std::optional<Diagnosis> failure = watching_ ? watching_->failure() : std::nullopt;
  watching_.reset();
  open_islands_.reset();
  CaptureResult result;
  result.warmup_time = warmup_time_;
  result.capture_time = since(began_);
  result.wanted_branches = wants_branches(options_);
  result.under_function_mode = trace::function_modes().users;
  if (region_uses_->any_ran()) result.region = trace::NumericRegion::current_number();
  result.region_uses = region_uses_->take();
  region_uses_.reset();
  if (recorder_) result.trace = std::make_shared<const OpTrace>(recorder_->take());
  if (blocks_) result.blocks = trace::blocks_on(generators_.front().device(), blocks_->blocks());
  blocks_.reset();
  for (const at::Tensor& input : options_.inputs) {
    result.input_bytes += input.nbytes();
    const auto begin = reinterpret_cast<std::uintptr_t>(trace::address_of(input));
    result.inputs.push_back({.begin = begin, .end = begin + trace::span_bytes_of(input)});
  }
  result.inputs = merged(std::move(result.inputs));
  const OpTrace* const trace = result.trace.get();

  if (failure) trace::throw_failure(*failure);  // what the observers say is not the whole
  const auto ending = Clock::now();
  if (auto offence = backend_.offence(trace)) throw CaptureError(std::move(*offence));
  if (outside_ && !backend_.executes_while_recording()) {
    if (auto obstacle = outside_->host_tensors().obstacle()) throw CaptureError(*std::move(obstacle));
  }
  if (path_) {
    if (auto other_path = path_->difference()) throw CaptureError(*std::move(other_path));
    path_.reset();
  }
  if (auto warning = backend_.end(trace, options_)) result.warnings.push_back(*std::move(warning));
  result.end_time = since(ending);
  capture_stage() = CaptureStage::none;
  const auto agreeing = Clock::now();
  agree_with_other_ranks(trace);
  if (!communication_->groups().empty() && !backend_.executes_while_recording())
    result.agreement_time = since(agreeing);
  backend_.choose(trace, [this](const c10::Storage& storage) { written_.save(storage); });
  if (earlier_) {
    const auto taking_over = Clock::now();
    take_over_from_earlier(*trace);
    result.end_time += since(taking_over);
  }

  if (written_.wrote_lazy_state()) {
    result.warnings.emplace_back(
        "the first run of the step made state that later runs write (an optimizer's, say); it stays as warm-up left "
        "it: make such state before the capture");
  }
  const std::vector<at::Tensor> new_gradients =
      outside_ ? written_.leaves_with_new_gradients() : std::vector<at::Tensor>();
  put_back(true);
  for (const std::string& device : moved_generators_) {
    result.warnings.push_back(
        fmt::format("another thread drew from a generator of {} during the capture: the generator is not put back and "
                    "continues after the numbers that the capture drew",
                    device));
  }
  recording_ = false;
  stream_.reset();
  in_pool_.reset();
  finished_ = true;
  result.dropout = std::move(dropout_);
  result.groups = communication_->names();
  if (!backend_.executes_while_recording()) result.collectives = communication_->take_off_clocks();
  communication_.reset();
  if (outside_) {
    result.outside.emplace(outside_->alive(), options_.names);
    result.outside->watch_gradients(new_gradients);
    if (!backend_.executes_while_recording()) result.outside->watch_values(outside_->host_tensors());
  }
  return result;
}

void CaptureSession::take_over_from_earlier(const OpTrace& trace) {
  if (auto difference = other_operations(*earlier_->trace, trace)) throw CaptureError(*std::move(difference));
  backend_.take_over(*earlier_->backend, *earlier_->trace, trace);
}

// Before anything is replayed. On the CPU nothing is compared: there the host waits in a replay as it does eagerly, in any order.
// A store that cannot be reached is the process group's to tell.
void CaptureSession::agree_with_other_ranks(const OpTrace* trace) {
  if (communication_->groups().empty() || backend_.executes_while_recording()) return;
  const auto place_of = [&](const distributed::Call& call) {
    return trace == nullptr ? "" : place_of_collective(*trace, call.place);
  };
  std::optional<Diagnosis> objection;
  try {
    const auto store = distributed::common_store(communication_->groups());
    if (!store) return;
    objection =
        distributed::Agreement::of_this_process().find_objection(communication_->statement(trace), store, place_of);
  } catch (const std::exception&) {
    return;
  }
  if (objection) throw CaptureError(*std::move(objection));
}

void CaptureSession::fail(std::exception_ptr error) {
  const std::optional<trace::OddWork> odd = watching_ ? odd_work_of(*watching_, options_.communication) : std::nullopt;
  const std::optional<trace::OddWork> communication = watching_ ? watching_->communication() : std::nullopt;
  watching_.reset();
  std::optional<OpTrace> trace;
  if (recorder_) trace = recorder_->take();
  abandon();
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& torch_error) {
    const bool no_memory = dynamic_cast<const c10::OutOfMemoryError*>(&torch_error) != nullptr;
    if (odd && !no_memory) std::throw_with_nested(CaptureError(odd->diagnosis()));
    if (auto timing = explain_timing(communication, torch_error)) throw_explained(*std::move(timing));
    auto explanation = backend_.explain(torch_error, trace ? &*trace : nullptr);
    if (!explanation) throw;
    throw_explained(*std::move(explanation));
  } catch (const std::runtime_error& other) {
    // TorchScript's interpreter throws an error of its own for what an operation in it threw.
    constexpr std::string_view kInterpreter = "The following operation failed in the TorchScript interpreter";
    const auto offence = backend_.offence(trace ? &*trace : nullptr);
    if (!offence || !std::string_view(other.what()).starts_with(kInterpreter)) throw;
    std::throw_with_nested(CaptureError(*offence));
  }
}

void CaptureSession::abandon() noexcept {
  if (finished_) return;
  finished_ = true;
  watching_.reset();
  blocks_.reset();
  open_islands_.reset();
  if (recording_) backend_.abandon();
  if (communication_ && !backend_.executes_while_recording()) (void)communication_->take_off_clocks();
  capture_stage() = CaptureStage::none;
  try {
    put_back(false);
    stream_.reset();
    in_pool_.reset();
  } catch (const std::exception& error) {
    // The first error is on its way to the caller; this one must not replace it.
    TORCH_WARN("pianola: could not put back all that a failed capture wrote: ", error.what());
  }
}

void CaptureSession::leave_behind() noexcept {
  finished_ = true;
  if (watching_) watching_->disarm();
  if (blocks_) blocks_->stop();
  if (recording_) backend_.abandon();
  try {
    put_back(false);
  } catch (const std::exception& error) {
    TORCH_WARN("pianola: could not put back all that an abandoned capture wrote: ", error.what());
  }
  in_pool_.reset();
}

void CaptureSession::put_back(bool keep_gradients) {
  at::autocast::clear_cache();
  // Without `restore` the set holds what recording alone wrote, and recording counts for nothing in either case.
  keep_gradients ? written_.restore_keeping_gradients() : written_.restore();
  put_generators_back();
}

// Where others drew meanwhile, they would draw the same numbers once more.
void CaptureSession::put_generators_back() { moved_generators_.merge(generator_states_.put_back()); }

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
