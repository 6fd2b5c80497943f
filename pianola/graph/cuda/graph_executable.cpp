#include <pianola/graph/cuda/graph_executable.hpp>

#include <pianola/core/error.hpp>
#include <pianola/graph/cuda/executable_account.hpp>
#include <pianola/graph/cuda/refused_update.hpp>

#include <c10/cuda/CUDAGuard.h>

#include <utility>

namespace pianola::graph {

ExecutableShare::Counted GraphExecutable::counted() const {
  ExecutableShare::Counted counted = rest_->share.counted(*rest_->of.pool);
  counted.memory += rest_->memory;
  return counted;
}

void GraphExecutable::make_missing() {
  rest_->of.pool->check_ready();  // asleep it may have none
  instantiate();
}

void GraphExecutable::launch_shared(Launcher& launcher) {
  rest_->share.launch(launcher, *rest_->of.pool, rest_->of.copies, [this]() -> const Executable& {
    ExecutableMemory taken;
    own_ = make(taken);
    rest_->memory += taken;
    return own_;
  });
  if (!rest_->share) [[unlikely]]
    count();
}

// First of all, the pool's sleep knows it no more: another thread may be about to make it again.
void GraphExecutable::leave_pool() noexcept {
  const Parts& of = rest_->of;
  of.pool->graphs().remove(this);
  rest_->share.leave(*of.pool);
  if (of.graph != nullptr) rest_->share.hand_over(*of.pool, *of.graph);
}

void GraphExecutable::instantiate() {
  let_go();
  const bool shares = may_share();
  if (shares && join()) return;
  make_own();
  if (shares) return offer();
  count();
}

void GraphExecutable::instantiate_own() {
  let_go();
  make_own();
  count();
}

void GraphExecutable::let_go() {
  rest_->share.leave(*rest_->of.pool);
  own_ = {};
  rest_->memory = {};
  count();  // should none be made
}

void GraphExecutable::count() { rest_->of.pool->graphs().set(this, rest_->memory); }

void GraphExecutable::make_own() {
  own_ = {};
  {
    const auto alone = nodes_alone();
    own_ = make(rest_->memory);
  }
  rest_->of.copies.start(own_.get());
  rest_->earlier_graph.reset();
  if (rest_->of.numbers) rest_->of.numbers->start();
}

Executable GraphExecutable::make(ExecutableMemory& taken) const {
  const ExecutableAccount account;
  Executable made = Executable::instantiate(made_of(), {.auto_free_on_launch = true, .use_node_priority = true});
  taken = account.taken();
  return made;
}

// Of a graph whose nodes replays leave as they are captured, but for copies of inputs.
bool GraphExecutable::may_share() const {
  const Parts& of = rest_->of;
  const bool is_as_captured = (!of.numbers || !of.numbers->any()) && rewired() == nullptr;
  if (!rest_->may_share || !is_as_captured || !of.pool->shares_executables()) return false;
  const auto alone = nodes_alone();
  return may_share_executables(of.graph->nodes());
}

bool GraphExecutable::join() {
  const Parts& of = rest_->of;
  if (!rest_->share.join(*of.pool, of.graph->nodes(), of.copies)) return false;
  own_ = {};
  rest_->memory = {};
  rest_->earlier_graph.reset();
  return true;
}

void GraphExecutable::offer() {
  const Parts& of = rest_->of;
  rest_->share.offer(*of.pool, std::move(own_), std::exchange(rest_->memory, {}), of.graph->nodes(), of.copies);
}

void GraphExecutable::share() {
  if (own_.get() != nullptr && may_share() && !join()) offer();
}

void GraphExecutable::take_lanes() {
  const Parts& of = rest_->of;
  rest_->memory = of.branches->executable_memory();
  count();
  own_ = of.branches->take_executable();
  if (of.numbers) of.numbers->start();
  of.copies = of.branches->exchange_copies(std::move(of.copies));
}

void GraphExecutable::take_over(GraphExecutable& earlier, const OpTrace& captured, const OpTrace& now) {
  const Parts& of = rest_->of;
  Rest& other = *earlier.rest_;
  if (other.share && other.of.pool == of.pool) return take_over_shared(earlier, captured, now);
  if (earlier.own_.get() == nullptr || other.share.lends_nodes()) return instantiate();
  if (auto refusal = explain_other_copies(other.of.copies.nodes().size(), of.copies.nodes().size())) {
    throw CaptureError(*std::move(refusal));
  }
  if (const auto refusal = earlier.own_.update(of.graph->nodes())) {
    throw CaptureError(explain_refused_update(*refusal, captured, now));
  }
  own_ = std::move(earlier.own_);
  rest_->memory = std::exchange(other.memory, {});
  count();
  of.copies.start_in_place_of(other.of.copies, own_.get());
}

// Graphs that share it with the earlier capture go on with it.
void GraphExecutable::take_over_shared(GraphExecutable& earlier, const OpTrace& captured, const OpTrace& now) {
  if (!may_share()) return instantiate();
  const Parts& of = rest_->of;
  const Rest& other = *earlier.rest_;
  if (auto refusal = explain_other_copies(other.of.copies.nodes().size(), of.copies.nodes().size())) {
    throw CaptureError(*std::move(refusal));
  }
  if (const auto refusal = rest_->share.join(*of.pool, other.share, of.graph->nodes(), of.copies)) {
    throw CaptureError(explain_refused_update(*refusal, captured, now));
  }
}

void GraphExecutable::keep_of(GraphExecutable& earlier) noexcept {
  if (rest_->share || !rest_->of.copies.use_earlier_nodes()) return;
  Rest& other = *earlier.rest_;
  rest_->earlier_graph = other.earlier_graph ? std::move(other.earlier_graph) : other.of.graph->release();
}

void GraphExecutable::add_memory(ExecutableMemory more) {
  rest_->memory += more;
  rest_->of.pool->graphs().add_memory(this, more);
}

void GraphExecutable::drop_executables() noexcept {
  rest_->is_dropped = rest_->is_dropped || own_.get() != nullptr;
  own_ = {};
  rest_->memory = {};
  rest_->share.drop_executable(*rest_->of.pool);
  if (rest_->of.numbers) rest_->of.numbers->drop_executables();
}

// One that nobody had asked for is not made.
ExecutableMemory GraphExecutable::make_executables() {
  const Parts& of = rest_->of;
  bind_context();
  const c10::cuda::OptionalCUDAGuard on_device(of.device);
  if (rest_->is_dropped) make_own();
  rest_->is_dropped = false;
  if (rest_->share.lacks_executable()) {
    ExecutableMemory taken;
    Executable made = make(taken);
    rest_->share.make_again(*of.pool, std::move(made), taken, of.graph->nodes(), of.copies);
  }
  if (of.numbers) rest_->memory += of.numbers->make_executables();
  return counted().memory;
}

}  // namespace pianola::graph
