#include <pianola/audit/cuda/cuda_calls.hpp>

#include <pianola/audit/cuda/call_findings.hpp>
#include <pianola/audit/cuda/sync_debug.hpp>
#include <pianola/cuda/cupti.hpp>
#include <pianola/cuda/device_address.hpp>
#include <pianola/cuda/driver.hpp>
#include <pianola/trace/host_read.hpp>
#include <pianola/trace/op_info.hpp>

#include <ATen/record_function.h>

#include <fmt/format.h>

#include <atomic>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

namespace pianola::auditing {
namespace {

// A loop that asks an event until it is done may ask very often.
constexpr std::size_t kMostStacks = 20'000;
constexpr std::size_t kMostCalls = 200'000;

// What this thread is doing for a run.
struct Running {
  std::uint64_t run = 0;  // of all logs
  bool inside = false;    // an operation runs
  bool aten = false;      // which is ATen's
  bool explained = false;
  bool copied_to_host = false;
  std::size_t operation = 0;         // its index + 1
  std::vector<Running> around = {};  // operations that called it, outermost first
};

Running& running(std::uint64_t run) {
  thread_local Running here;
  if (here.run != run) here = {.run = run};
  return here;
}

// Copies between host and device are reported as such, with their waits.
bool is_copy(std::string_view operation) {
  return operation.find("copy") != std::string_view::npos || operation.find("pin_memory") != std::string_view::npos;
}

// Memory of the host that CUDA does not know.
bool is_pageable(const void* address) {
  return address != nullptr && !is_device_address(reinterpret_cast<CUdeviceptr>(address));
}

// The one that runtime and torch use. Asking for it takes a reference for a moment.
CUcontext context_of(c10::DeviceIndex device) {
  const Driver* driver = Driver::try_get();
  CUcontext context = nullptr;
  if (driver != nullptr && driver->device_primary_ctx_retain(&context, device) == CUDA_SUCCESS) {
    driver->device_primary_ctx_release(device);
  }
  return context;
}

bool is_transfer(ApiKind kind) { return kind == ApiKind::launch || kind == ApiKind::copy || kind == ApiKind::fill; }

// What no thread may call while a capture in mode `global` is open.
bool is_unsafe(const ApiCall& api) {
  return api.kind == ApiKind::wait || api.kind == ApiKind::pinned_allocation || api.kind == ApiKind::free ||
         (api.kind == ApiKind::copy && api.blocking);
}

// The allocators wait and ask for themselves; inside an operation of a library that is its doing.
bool is_somebodys(const CudaCall& call) { return call.inside || call.caller != Caller::internal; }
bool is_torchs(const CudaCall& call) { return call.caller != Caller::other; }  // libraries set themselves up
bool is_outsiders(const CudaCall& call) { return call.caller == Caller::other; }

}  // namespace

// Note [What is logged of a run]
// CUPTI shows the calls of all threads. Those of the step are made on its thread and on autograd's, which carry the
// callbacks of the run's OpStream; Pianola's own are made with RecordFunction off (QuietScope); those of other devices
// have another context. In the step, what an operation of ATen does is ATen's business: the trace tells, by OpInfo,
// whether it reads on the host, and libraries below it (cuDNN) order streams of their own by themselves. Of its calls
// remain: a copy to the host with a wait in an operation that is not known for it, work on the current stream where
// that is not the step's, and pinned memory. Between operations, and inside those of other libraries, every call
// counts, but for those of the allocators, which record and query events for themselves.

struct CudaCallLog::State {
  State(c10::cuda::CUDAStream stream, bool with_sources)
      : step_stream(stream), device(stream.device_index()), sources(with_sources) {}

  const c10::cuda::CUDAStream step_stream;
  const c10::DeviceIndex device;
  const bool sources;
  bool all_launches = false;

  CudaView view;
  std::thread::id step_thread;
  CUcontext context = nullptr;
  std::atomic<std::uint64_t> run{0};  // 0: none
  std::atomic<std::size_t> operations{0};

  mutable std::mutex mutex;  // of what follows
  std::vector<CudaCall> calls;
  std::set<CUevent> recorded;              // in this run
  std::set<std::string> of_other_threads;  // names of unsafe calls, in any run
  std::size_t stacks = 0;                  // that were taken
  std::atomic<bool> left_out{false};

  std::string problem;  // why there is no CUPTI, in the last run
  std::unique_ptr<CuptiSubscription> subscription;
  std::unique_ptr<SyncDebug> fallback;

  void on_call(const ApiCall& api) noexcept {
    try {
      note(api);
    } catch (const std::exception&) {
      left_out = true;  // for lack of memory
    }
  }

  void note(const ApiCall& api);
  void note_of_others(CudaCall call);
  void note_in_aten(CudaCall call, Running& here);
  void note_elsewhere(CudaCall call, Running& here);
  void note_wait_of_torch();
  // Adds the call with its caller, and with its site where it is no operation's. `wanted`: whether that caller matters.
  void add_with_stack(CudaCall call, bool (*wanted)(const CudaCall& call) = nullptr);
  void add(CudaCall call);
  [[nodiscard]] CudaCall describe(const ApiCall& api, const Running& here) const;
  [[nodiscard]] bool knows(CUevent event) const;
};

CudaCall CudaCallLog::State::describe(const ApiCall& api, const Running& here) const {
  CudaCall call;
  call.api = api;
  call.thread = std::this_thread::get_id();
  call.of_step = call.thread == step_thread || at::hasThreadLocalCallbacks();
  call.operation = here.inside ? here.operation : operations.load();
  call.inside = here.inside;
  call.aten = here.aten;
  call.explained = here.explained;
  return call;
}

void CudaCallLog::State::note(const ApiCall& api) {
  const std::uint64_t now = run.load();
  if (now == 0 || (api.context != nullptr && api.context != context)) return;
  Running& here = running(now);
  // Nearly all calls end here: the kernels of ATen's operations.
  const bool own_work = is_transfer(api.kind) && api.stream == view.own && !api.blocking;
  if (own_work && here.aten && !api.to_host) return;
  if (own_work && api.kind == ApiKind::fill) return;
  if (own_work && api.kind == ApiKind::launch && !all_launches) return;
  if (!at::isRecordFunctionEnabled()) return;
  CudaCall call = describe(api, here);
  if (!call.of_step) {
    note_of_others(std::move(call));
  } else if (call.aten) {
    note_in_aten(std::move(call), here);
  } else {
    note_elsewhere(std::move(call), here);
  }
}

// Autograd joins streams when it has put down what marks its threads; events order streams whoever records them.
void CudaCallLog::State::note_of_others(CudaCall call) {
  const ApiCall& api = call.api;
  if ((api.kind == ApiKind::record || api.kind == ApiKind::stream_wait) && !api.external) return add(std::move(call));
  if (!is_unsafe(api)) return;
  {
    const std::lock_guard lock(mutex);
    of_other_threads.insert(api.name);
  }
  add(std::move(call));
}

void CudaCallLog::State::note_in_aten(CudaCall call, Running& here) {
  const ApiCall api = call.api;
  const bool waits = api.kind == ApiKind::wait || (api.kind == ApiKind::copy && api.blocking);
  if (api.kind == ApiKind::copy && api.to_host) here.copied_to_host = true;
  if (waits) {
    call.after_copy = here.copied_to_host;
    if (call.after_copy && !call.explained) add(std::move(call));
  } else if (api.kind == ApiKind::pinned_allocation) {
    if (!call.explained) add_with_stack(std::move(call), is_torchs);
  } else if (is_transfer(api.kind) && api.stream != view.own && !all_launches && api.stream == view.current_stream()) {
    add(std::move(call));
  }
}

void CudaCallLog::State::note_elsewhere(CudaCall call, Running& here) {
  const ApiCall api = call.api;
  switch (api.kind) {
    case ApiKind::wait:
      call.after_copy = call.inside && here.copied_to_host;
      return add_with_stack(std::move(call), is_somebodys);
    case ApiKind::query:
      return add_with_stack(std::move(call), is_somebodys);
    case ApiKind::record:
      if (!api.external) add(std::move(call));
      return;
    case ApiKind::stream_wait:
      if (api.external) return;
      return knows(api.event) ? add(std::move(call)) : add_with_stack(std::move(call));
    case ApiKind::launch:
    case ApiKind::fill:
    case ApiKind::pinned_allocation:
      return add_with_stack(std::move(call));
    case ApiKind::copy:
      here.copied_to_host = here.copied_to_host || api.to_host;
      call.pageable = is_pageable(api.source) || is_pageable(api.destination);
      if (call.pageable || api.blocking || api.stream != view.own) add_with_stack(std::move(call));
      return;
    case ApiKind::free:
      if (api.destination != nullptr) add_with_stack(std::move(call), is_outsiders);
      return;
  }
}

void CudaCallLog::State::add_with_stack(CudaCall call, bool (*wanted)(const CudaCall& call)) {
  {
    const std::lock_guard lock(mutex);
    if (stacks == kMostStacks) {
      left_out = true;
      return;
    }
    ++stacks;
  }
  CallerStack stack = caller_of_cuda();
  call.caller = stack.caller;
  if (wanted != nullptr && !wanted(call)) return;
  if (stack.caller == Caller::other) call.library = std::move(stack.library);
  // Of an operation of a library the trace knows the place.
  if (sources && !call.inside && !stack.frames.empty()) {
    call.site = trace::CallSite::of(std::move(stack.frames), stack.script_is_safe);
  }
  add(std::move(call));
}

void CudaCallLog::State::add(CudaCall call) {
  const std::lock_guard lock(mutex);
  if (run.load() == 0) return;  // it was stopped meanwhile
  if (call.api.kind == ApiKind::record) recorded.insert(call.api.event);
  if (calls.size() < kMostCalls) {
    calls.push_back(std::move(call));
  } else {
    left_out = true;
  }
}

bool CudaCallLog::State::knows(CUevent event) const {
  const std::lock_guard lock(mutex);
  return recorded.count(event) != 0;
}

// Without CUPTI: torch warns before it waits.
void CudaCallLog::State::note_wait_of_torch() {
  ApiCall api;
  api.kind = ApiKind::wait;
  api.name = "a synchronizing function of torch";
  const std::uint64_t now = run.load();
  if (now == 0 || !at::isRecordFunctionEnabled()) return;
  CudaCall call = describe(api, running(now));
  if (call.aten) {
    call.after_copy = true;
    if (!call.explained) add(std::move(call));
    return;
  }
  CallerStack stack = caller_of_torch();
  if (stack.caller == Caller::unknown) return;
  call.caller = stack.caller;
  if (sources && !call.inside) call.site = trace::CallSite::of(std::move(stack.frames), stack.script_is_safe);
  add(std::move(call));
}

CudaCallLog::CudaCallLog(c10::cuda::CUDAStream stream, bool sources)
    : state_(std::make_shared<State>(stream, sources)) {}

CudaCallLog::~CudaCallLog() { stop(); }

void CudaCallLog::log_all_launches() noexcept { state_->all_launches = true; }

void CudaCallLog::start() {
  start({.cupti = Cupti::try_get(), .own = state_->step_stream.stream(), .current_stream = [device = state_->device] {
           return c10::cuda::getCurrentCUDAStream(device).stream();
         }});
}

void CudaCallLog::start(CudaView view) {
  static std::atomic<std::uint64_t> runs{0};
  stop();
  state_->calls.clear();
  state_->recorded.clear();
  state_->stacks = 0;
  state_->operations = 0;
  state_->view = std::move(view);
  state_->step_thread = std::this_thread::get_id();
  state_->context = context_of(state_->device);
  state_->run = ++runs;
  auto opening =
      CuptiSubscription::open([state = state_](const ApiCall& api) { state->on_call(api); }, state_->view.cupti);
  state_->subscription = std::move(opening.subscription);
  state_->problem = std::move(opening.problem);
  if (state_->subscription == nullptr && SyncDebug::works()) {
    state_->fallback = std::make_unique<SyncDebug>([state = state_.get()] { state->note_wait_of_torch(); });
  }
}

void CudaCallLog::stop() noexcept {
  {
    const std::lock_guard lock(state_->mutex);
    state_->run = 0;
  }
  state_->subscription.reset();
  state_->fallback.reset();
}

std::span<const CudaCall> CudaCallLog::calls() const noexcept { return state_->calls; }

// Without the lock: nobody adds a call after stop(), and naming places may have to wait for Python.
std::vector<CudaFinding> CudaCallLog::findings(const OpTrace& trace) const {
  return call_findings({.calls = state_->calls,
                        .trace = trace,
                        .own = state_->view.own,
                        .device = state_->device,
                        .watched = state_->problem.empty()});
}

std::vector<std::string> CudaCallLog::notes() const {
  static constexpr char kNotWatched[] =
      "calls of CUDA by code outside ATen were not watched, because {}: waits, queries, pinned memory and work on "
      "other streams are seen only if an operation shows them";
  static constexpr char kOtherThread[] =
      "another thread called {} while the step ran: that breaks captures in mode `global`, but not in the default mode";
  constexpr const char* kTooMany = "the step called CUDA so often that not all of its calls were looked at";
  const std::lock_guard lock(state_->mutex);
  std::vector<std::string> notes;
  if (!state_->problem.empty()) notes.push_back(fmt::format(kNotWatched, state_->problem));
  for (const std::string& name : state_->of_other_threads) {
    notes.push_back(fmt::format(kOtherThread, name));
  }
  if (state_->left_out) notes.emplace_back(kTooMany);
  return notes;
}

void CudaCallLog::on_op_begin(const trace::OpSpan& op) {
  const std::uint64_t now = state_->run.load();
  if (now == 0) return;
  Running& here = running(now);
  if (op.around != 0 && here.inside) {
    Running outer = here;
    outer.around.clear();
    here.around.push_back(std::move(outer));
  }
  here.inside = true;
  here.aten = op.info->name.starts_with("aten::");
  here.explained = here.aten && (trace::reads_on_host(*op.info, op.inputs) || is_copy(op.info->name));
  here.copied_to_host = false;
  here.operation = ++state_->operations;
}

void CudaCallLog::on_op_end(const trace::OpSpan& /*op*/) {
  const std::uint64_t now = state_->run.load();
  if (now == 0) return;
  Running& here = running(now);
  if (here.around.empty()) {
    here.inside = here.aten = here.explained = false;
    return;
  }
  std::vector<Running> around = std::move(here.around);
  here = std::move(around.back());
  around.pop_back();
  here.around = std::move(around);
}

}  // namespace pianola::auditing
