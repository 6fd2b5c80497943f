#include <pianola/trace/call_gate.hpp>

#include <c10/core/DispatchKey.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <memory>
#include <utility>

namespace pianola::trace {
namespace {

// Note [The key of the gate]
// A call has to be seen before any kernel runs, and perhaps not be made at all: only a dispatch key can do that. Torch has one
// for modes of C++, above all keys of Python's and autograd's; it names it after its only user, a test of its own. It is
// included on a thread while a gate is open there, and costs nothing elsewhere.
constexpr c10::DispatchKey kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

struct OpenGate {
  CallGate::Handler handler;
  CallGate::MakesOfOthers makes_of_others;
  std::unique_ptr<OpenGate> outer;
  c10::DispatchKeySet keys = {};  // of the call at hand
};
thread_local std::unique_ptr<OpenGate> open_gate;

// While it lives, the gate around the innermost one is the innermost.
class OuterGate {
 public:
  OuterGate() : inner_(std::exchange(open_gate, std::move(open_gate->outer))) { open_gate->keys = inner_->keys; }
  OuterGate(const OuterGate&) = delete;
  OuterGate& operator=(const OuterGate&) = delete;
  ~OuterGate() {
    inner_->outer = std::move(open_gate);
    open_gate = std::move(inner_);
  }

 private:
  std::unique_ptr<OpenGate> inner_;
};

void set_included(bool included) { c10::impl::tls_set_dispatch_key_included(kKey, included); }

void on_call(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
  const OpInfo& op = info_of(handle);
  if (open_gate == nullptr || op.transparent_now(torch::jit::last(*stack, handle.schema().arguments().size()))) {
    return handle.redispatchBoxed(below, stack);
  }
  const c10::impl::ExcludeDispatchKeyGuard inside(kKey);
  open_gate->keys = below;
  open_gate->handler(op, *stack);
}

// When the first gate opens, so that a process may hold this code twice (a static and a shared library) and use one.
void register_once() {
  static torch::Library library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
  static const bool done = (library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_call>()), true);
  (void)done;
}

}  // namespace

CallGate::CallGate(Handler handler, MakesOfOthers makes_of_others) {
  register_once();
  open_gate = std::make_unique<OpenGate>(OpenGate{
      .handler = std::move(handler), .makes_of_others = std::move(makes_of_others), .outer = std::move(open_gate)});
  set_included(true);
}

CallGate::~CallGate() {
  std::unique_ptr<OpenGate> outer = std::move(open_gate->outer);
  open_gate = std::move(outer);
  if (open_gate == nullptr) set_included(false);
}

void CallGate::run(const OpInfo& op, torch::jit::Stack& stack) {
  if (open_gate->outer == nullptr) return op.handle.redispatchBoxed(open_gate->keys, &stack);
  const OuterGate outer;
  open_gate->handler(op, stack);
}

bool CallGate::makes_of_others(const OpInfo& op, c10::ArrayRef<c10::IValue> inputs) {
  for (const OpenGate* gate = open_gate.get(); gate != nullptr; gate = gate->outer.get()) {
    if (gate->makes_of_others && gate->makes_of_others(op, inputs)) return true;
  }
  return false;
}

bool CallGate::is_open() noexcept { return open_gate != nullptr; }

}  // namespace pianola::trace
