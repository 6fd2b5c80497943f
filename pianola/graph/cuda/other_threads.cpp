#include <pianola/graph/cuda/other_threads.hpp>

#include <pianola/cuda/capture_info.hpp>
#include <pianola/trace/op_stream.hpp>

#include <ATen/record_function.h>

#include <fmt/format.h>

#include <pthread.h>

#include <array>
#include <mutex>
#include <thread>
#include <utility>

namespace pianola::graph {

struct OtherThreads::State {
  explicit State(CUstream stream) : capturing(stream) {}

  CUstream capturing;
  std::thread::id own = std::this_thread::get_id();
  at::CallbackHandle callback = at::INVALID_CALLBACK_HANDLE;

  std::mutex mutex;
  std::string culprit;  // the operation, once there is one
  std::string thread;
  trace::CallSite site;

  void look(const at::RecordFunction& span);

  // Callbacks are plain functions: what they work for stands here while a capture in mode `global` is open.
  static inline std::mutex watching_mutex;
  static inline std::shared_ptr<State> watching;
  static void on_end(const at::RecordFunction& span, at::ObserverContext* context);
};

namespace {

std::string name_of_this_thread() {
  std::array<char, 32> name{};
  if (pthread_getname_np(pthread_self(), name.data(), name.size()) != 0) return "";
  return name.data();
}

}  // namespace

void OtherThreads::State::on_end(const at::RecordFunction& span, at::ObserverContext* /*context*/) {
  std::shared_ptr<State> state;
  {
    const std::lock_guard lock(watching_mutex);
    state = watching;
  }
  if (state != nullptr) state->look(span);
}

// Spans end innermost first: the first that sees the broken capture is the call itself.
void OtherThreads::State::look(const at::RecordFunction& span) {
  if (std::this_thread::get_id() == own || trace::OpStream::watches_this_thread()) return;
  if (capture_status(capturing) != CaptureStatus::invalidated) return;
  const std::lock_guard lock(mutex);
  if (!culprit.empty()) return;
  culprit = span.name();
  thread = name_of_this_thread();
  site = trace::CallSite::here();
}

OtherThreads::OtherThreads(CUstream capturing) : state_(std::make_shared<State>(capturing)) {
  const std::lock_guard lock(State::watching_mutex);
  if (State::watching != nullptr) return;
  State::watching = state_;
  state_->callback =
      at::addGlobalCallback(at::RecordFunctionCallback(nullptr, &State::on_end).scopes({at::RecordScope::FUNCTION}));
}

OtherThreads::~OtherThreads() { stop(); }

void OtherThreads::stop() noexcept {
  if (state_->callback == at::INVALID_CALLBACK_HANDLE) return;
  at::removeCallback(std::exchange(state_->callback, at::INVALID_CALLBACK_HANDLE));
  const std::lock_guard lock(State::watching_mutex);
  State::watching.reset();
}

std::optional<Diagnosis> OtherThreads::explain() const {
  const std::lock_guard lock(state_->mutex);
  if (state_->culprit.empty()) return std::nullopt;
  const std::string place = state_->site.describe();
  return Diagnosis{
      .what = fmt::format("another thread called {} and broke the capture, which is in mode `global`", state_->culprit),
      .where = fmt::format("thread '{}'{}{}", state_->thread, place.empty() ? "" : ", ", place),
      .fix = "capture in mode thread_local, in which other threads do no harm, or stop the thread during the capture",
      .rule = "PG707"};
}

}  // namespace pianola::graph
