#include <pianola/profile/record/activity_recorder.hpp>

#include <pianola/profile/record/activity_decoder.hpp>
#include <pianola/profile/record/recording_writer.hpp>

#include <fmt/format.h>

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <future>
#include <limits>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

namespace pianola::profiling {
namespace {

using Clock = std::chrono::steady_clock;

// Without these there is nothing to analyse. The kinds of all runtime and driver calls and of synchronizations are not
// among them: most are calls that say nothing here, and each record costs the thread that calls.
constexpr std::array kNeededKinds = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                     CUPTI_ACTIVITY_KIND_MEMSET};
constexpr std::array kWelcomeKinds = {CUPTI_ACTIVITY_KIND_MEMCPY2, CUPTI_ACTIVITY_KIND_DEVICE};

// What CUPTI's callbacks work on, which have no argument for it. Never destroyed: CUDA is called until the very end.
std::atomic<std::shared_ptr<ActivityBuffers>>& active_buffers() {
  static auto& buffers = *new std::atomic<std::shared_ptr<ActivityBuffers>>;
  return buffers;
}

void CUPTIAPI on_request(std::uint8_t** buffer, std::size_t* size, std::size_t* max_records) {
  const std::shared_ptr<ActivityBuffers> buffers = active_buffers().load();
  *buffer = buffers == nullptr ? nullptr : buffers->request();
  *size = *buffer == nullptr ? 0 : buffers->bytes();
  *max_records = 0;  // as many as there is room for
}

void CUPTIAPI on_complete(CUcontext /*context*/, std::uint32_t /*stream*/, std::uint8_t* buffer, std::size_t /*size*/,
                          std::size_t valid_bytes) {
  const std::shared_ptr<ActivityBuffers> buffers = active_buffers().load();
  if (buffers != nullptr) {
    buffers->complete(buffer, valid_bytes);
  } else {
    std::free(buffer);  // of a recording that has ended
  }
}

void CUPTIAPI on_callback(void*, CUpti_CallbackDomain, CUpti_CallbackId, const void*) {}

Nanoseconds wall_clock() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return Nanoseconds{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

RecordingStart now(const ActivityApi& api) {
  std::uint64_t clock = 0;
  const Nanoseconds wall = wall_clock();
  // CUPTI's own clock is the wall's too: it stands in where CUPTI does not tell.
  const bool told = api.get_timestamp(&clock) == CUPTI_SUCCESS && clock != 0;
  return {.process_id = static_cast<std::uint32_t>(getpid()),
          .clock = told ? static_cast<Nanoseconds>(clock) : wall,
          .wall = wall};
}

// Signals are the program's: none is to arrive on a thread that it does not know.
class WithoutSignals {
 public:
  WithoutSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  WithoutSignals(const WithoutSignals&) = delete;
  WithoutSignals& operator=(const WithoutSignals&) = delete;
  ~WithoutSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

}  // namespace

// What the recorder and its thread share.
struct ActivityRecorder::Session {
  Session(const ActivityApi& functions, RecorderOptions given)
      : api(functions),
        calls(functions),
        options(std::move(given)),
        buffers(std::make_shared<ActivityBuffers>(options.buffers)) {}

  std::optional<Diagnosis> begin();
  void end();
  std::optional<Diagnosis> enable();
  void enable_late(Clock::time_point begin);
  void disable();
  void watch_calls();
  void enable_calls(std::uint8_t on);
  void run() noexcept;
  void record(Clock::time_point end);
  void take_apart(const ActivityBuffers::Full& full);
  void count_dropped();
  void write_what_came(bool anything);
  void finish();

  const ActivityApi api;
  const RecordedCalls calls;
  const RecorderOptions options;
  const std::shared_ptr<ActivityBuffers> buffers;
  CUpti_SubscriberHandle subscriber = nullptr;
  std::unique_ptr<RecordingWriter> writer;
  std::optional<ActivityDecoder> decoder;
  std::atomic<bool> stopping = false;
  std::promise<void> finished;
  std::thread thread;
  bool enabled = false;  // of the thread, once it runs
  bool failed = false;
  std::string late_problem;
};

// The steps of a start, each after those that it needs; end() takes back what was done.
std::optional<Diagnosis> ActivityRecorder::Session::begin() {
  if (auto problem = check_version(api)) return problem;
  if (const CUptiResult result = api.subscribe(&subscriber, &on_callback, nullptr); result != CUPTI_SUCCESS) {
    subscriber = nullptr;
    return explain(api, result, "cuptiSubscribe");
  }
  // Neither is needed: the first gives threads the numbers that the system knows them by, the second keeps CUPTI from
  // clearing buffers on the program's threads, since they come cleared.
  (void)api.set_thread_id_type(CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM);
  std::uint8_t zeroed = 1;
  std::size_t size = sizeof zeroed;
  (void)api.set_attribute(CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER, &size, &zeroed);

  auto opening = RecordingWriter::open(options.path, now(api), options.max_bytes);
  if (opening.writer == nullptr) {
    return Diagnosis{.what = std::move(opening.problem), .fix = "give a folder that can be written, with --output"};
  }
  writer = std::move(opening.writer);
  decoder.emplace(*writer, calls);
  active_buffers().store(buffers);
  if (const CUptiResult result = api.register_callbacks(&on_request, &on_complete); result != CUPTI_SUCCESS) {
    return explain(api, result, "cuptiActivityRegisterCallbacks");
  }
  if (options.delay.count() == 0) return enable();
  watch_calls();
  return std::nullopt;
}

void ActivityRecorder::Session::end() {
  disable();
  if (subscriber != nullptr) (void)api.unsubscribe(subscriber);
  subscriber = nullptr;
  active_buffers().store(nullptr);
}

std::optional<Diagnosis> ActivityRecorder::Session::enable() {
  enabled = true;
  for (const CUpti_ActivityKind kind : kNeededKinds) {
    if (const CUptiResult result = api.enable(kind); result != CUPTI_SUCCESS) {
      return explain(api, result, "cuptiActivityEnable");
    }
  }
  for (const CUpti_ActivityKind kind : kWelcomeKinds) (void)api.enable(kind);
  if (options.ranges) (void)api.enable(CUPTI_ACTIVITY_KIND_MARKER);
  enable_calls(1);
  return std::nullopt;
}

// Until the delay is over. Calls that CUPTI is asked for when the program uses CUDA already are not recorded (CUPTI 13.0), so
// that those of the delay are taken and dropped; and devices tell their names when they are first used.
void ActivityRecorder::Session::watch_calls() {
  decoder->ignore_calls_before(std::numeric_limits<Nanoseconds>::max());
  enable_calls(1);
  (void)api.enable(CUPTI_ACTIVITY_KIND_DEVICE);
  enabled = true;
}

void ActivityRecorder::Session::disable() {
  if (!std::exchange(enabled, false)) return;
  for (const CUpti_ActivityKind kind : kNeededKinds) (void)api.disable(kind);
  for (const CUpti_ActivityKind kind : kWelcomeKinds) (void)api.disable(kind);
  if (options.ranges) (void)api.disable(CUPTI_ACTIVITY_KIND_MARKER);
  enable_calls(0);
}

// One that this CUPTI does not know is one that nobody calls.
void ActivityRecorder::Session::enable_calls(std::uint8_t on) {
  for (const RecordedCall& call : calls.all()) {
    if (!is_watched(call)) continue;
    (void)(call.driver ? api.enable_driver_api(call.id, on) : api.enable_runtime_api(call.id, on));
  }
}

// The recorder's thread. Whatever fails here ends the recording, never the program.
void ActivityRecorder::Session::run() noexcept {
  try {
    const Clock::time_point begin = Clock::now() + options.delay;
    if (options.delay.count() > 0) enable_late(begin);
    record(options.duration.count() > 0 ? begin + options.duration : Clock::time_point::max());
    finish();
  } catch (const std::exception&) {
    failed = true;
    disable();
  }
  finished.set_value();
}

void ActivityRecorder::Session::enable_late(Clock::time_point begin) {
  while (!stopping && Clock::now() < begin) {
    if (const auto full = buffers->wait_until(begin)) take_apart(*full);
  }
  if (stopping) return;
  decoder->ignore_calls_before(now(api).clock);
  if (const auto problem = enable()) late_problem = problem->what;
}

void ActivityRecorder::Session::record(Clock::time_point end) {
  Clock::time_point next = Clock::now() + options.period;
  bool anything_came = false;
  while (!stopping) {
    if (const auto full = buffers->wait_until(std::min(next, end))) {
      take_apart(*full);
      anything_came = true;
    }
    if (Clock::now() >= end) {
      disable();
      end = Clock::time_point::max();
    }
    if (Clock::now() < next) continue;
    next = Clock::now() + options.period;
    write_what_came(std::exchange(anything_came, false));
  }
}

void ActivityRecorder::Session::take_apart(const ActivityBuffers::Full& full) {
  CUpti_Activity* record = nullptr;
  while (writer->is_taking() && api.next_record(full.data, full.valid_bytes, &record) == CUPTI_SUCCESS) {
    decoder->decode(*record);
  }
  buffers->recycle(full.data);
  count_dropped();
}

void ActivityRecorder::Session::count_dropped() {
  std::size_t dropped = 0;
  if (api.dropped_records(nullptr, 0, &dropped) == CUPTI_SUCCESS && dropped > 0) writer->add_dropped(dropped);
}

void ActivityRecorder::Session::write_what_came(bool anything) {
  if (!writer->is_taking()) return disable();  // full: the program goes on at its own speed
  // Buffers whose records are all complete: waits for no device, but for locks that the program's launches take.
  if (!anything) (void)api.flush_all(0);
  writer->write();
}

void ActivityRecorder::Session::finish() {
  (void)api.flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  while (const auto full = buffers->wait_until(Clock::now())) take_apart(*full);
  count_dropped();
  decoder->finish();
  writer->finish();
}

ActivityRecorder::Opening ActivityRecorder::start(const ActivityApi& api, const RecorderOptions& options) {
  auto session = std::make_shared<Session>(api, options);
  if (auto problem = session->begin()) {
    session->end();
    if (session->writer != nullptr) unlink(options.path.c_str());
    return {.recorder = nullptr, .problem = std::move(*problem)};
  }
  try {
    const WithoutSignals inherited_by_the_thread;
    session->thread = std::thread([session] { session->run(); });
  } catch (const std::system_error& error) {
    session->end();
    return {.recorder = nullptr,
            .problem = {.what = fmt::format("the recorder could not start its thread: {}", error.what()),
                        .fix = "allow the command one more thread (ulimit -u)"}};
  }
  Opening opening;
  opening.recorder.reset(new ActivityRecorder(std::move(session)));
  return opening;
}

ActivityRecorder::~ActivityRecorder() { stop(); }

std::string ActivityRecorder::stop() {
  if (session_->thread.joinable() && write_the_rest()) session_->end();
  return outcome_;
}

std::string ActivityRecorder::stop_at_exit() {
  if (session_->thread.joinable()) write_the_rest();
  return outcome_;
}

// False if the thread did not end in time.
bool ActivityRecorder::write_the_rest() {
  auto done = session_->finished.get_future();
  session_->stopping = true;
  session_->buffers->wake();
  if (done.wait_for(session_->options.patience) != std::future_status::ready) {
    // Somebody holds CUPTI or the disk: the program is not to wait for it. The thread keeps the session alive.
    session_->thread.detach();
    outcome_ = fmt::format("the last records did not come within {:.3g} s",
                           std::chrono::duration<double>(session_->options.patience).count());
    return false;
  }
  session_->thread.join();
  outcome_ = session_->failed                  ? "the recorder ran out of memory"
             : !session_->late_problem.empty() ? session_->late_problem
                                               : session_->writer->problem();
  return true;
}

}  // namespace pianola::profiling
