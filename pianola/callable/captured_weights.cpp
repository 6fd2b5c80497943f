// The part of CapturedCallable that computes the gradients of weights that backward passes have left for later.
#include <pianola/callable/captured_callable.hpp>

#include <pianola/core/error.hpp>

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

namespace pianola::callable {

namespace autograd = torch::autograd;

namespace {

// Rises through the process, so that callables can be put in order.
std::uint64_t next_debt() {
  static std::atomic<std::uint64_t> last = 0;
  return ++last;
}

}  // namespace

// Of those that a gradient flows to.
CapturedCallable::Routed CapturedCallable::take_routed(RoutedGradients& routed, const Pass& pass) {
  std::vector<std::size_t> wanted;
  Routed result;
  for (std::size_t k = 0; k < routed.parameters().size(); ++k) {
    if (std::binary_search(pass.unreached_routed.begin(), pass.unreached_routed.end(), k)) continue;
    wanted.push_back(k);
    result.edges.push_back(pass.routed_edges[k]);
  }
  result.gradients = routed.hand_out(wanted);
  return result;
}

// Of autograd.grad() for named tensors nothing is left: `p.grad` has to stay as it is.
void CapturedCallable::note_debt(const BackwardNode& node, const CapturedMode::Unreached& unreached) const {
  Pass& pass = node.pass();
  pass.microbatch = node.microbatch();
  pass.iteration = turn_ == nullptr ? 0 : turn_->restarts();
  pass.unreached_direct = unreached.later_direct;
  pass.unreached_routed = unreached.later_routed;
  pass.routed_edges.clear();
  if (node.mode().later().routed) {
    for (const at::Tensor& one : node.mode().later().routed->parameters()) {
      pass.routed_edges.push_back(autograd::impl::gradient_edge(one));
    }
  }
  pass.weight_versions.clear();
  for (const at::Tensor& one : node.mode().weights_read()) pass.weight_versions.push_back(one._version());
  pass.owes = next_debt();
}

// As the end of a backward pass would: hooks of the parameters run.
void CapturedCallable::accumulate(const Routed& routed) {
  if (routed.edges.empty()) return;
  autograd::Engine::get_default_engine().execute(routed.edges, routed.gradients, /*keep_graph=*/false,
                                                 /*create_graph=*/false, /*accumulate_grad=*/true);
}

// An iteration that was given up takes what it left with it.
void CapturedCallable::forgive(Pass& pass) const noexcept {
  if (pass.owes != 0 && turn_ != nullptr && pass.iteration != turn_->restarts()) pass.owes = 0;
}

std::uint64_t CapturedCallable::oldest_debt() const noexcept {
  const Debt debt = find_debt();
  return debt.pass == nullptr ? 0 : debt.pass->owes.load();
}

CapturedCallable::Debt CapturedCallable::find_debt() const noexcept {
  Debt oldest{.mode = nullptr, .pass = nullptr};
  for (const auto& mode : modes_) {
    if (mode == nullptr) continue;
    for (const auto& pass : mode->passes()) {
      if (pass->owes == 0 || (oldest.pass != nullptr && oldest.pass->owes < pass->owes)) continue;
      oldest = {.mode = mode.get(), .pass = pass.get()};
    }
  }
  return oldest;
}

bool CapturedCallable::backward_weights(int microbatch) {
  const auto self = shared_from_this();
  std::optional<OneCall::Scope> one_call(std::in_place, one_call_, "backward_weights()", kSubject);
  check_alive("backward_weights()");
  if (turn_ != nullptr && !subject_->delays_weights) return false;
  for (const auto& known : modes_) {
    if (known == nullptr) continue;
    for (const auto& one : known->passes()) forgive(*one);
  }
  const auto [mode, pass] = find_debt();
  const bool has_turn = turn_ != nullptr && (pass != nullptr || in_flight() != 0 || turn_->expects_weights(layer_));
  if (has_turn) turn_->check_weights(layer_, microbatch == 0 && pass != nullptr ? pass->microbatch : microbatch);
  Routed routed;
  if (pass != nullptr) routed = launch_weights(*mode, *pass);
  if (has_turn) turn_->advance();
  one_call.reset();  // hooks may call
  accumulate(routed);
  return pass != nullptr;
}

// Nobody will ask for what is left, nor for what backward passes of calls in flight are going to leave.
void CapturedCallable::compute_at_once() noexcept {
  computes_at_once_ = true;
  try {
    while (alive_ && find_debt().pass != nullptr) backward_weights();
  } catch (const std::exception& error) {
    TORCH_WARN("pianola: gradients of weights that were left for later are lost: ", error.what());
  }
}

CapturedCallable::Routed CapturedCallable::launch_weights(CapturedMode& mode, Pass& pass) const {
  ParameterGradients* direct = mode.later().direct ? &*mode.later().direct : nullptr;
  const bool steady = mode.later().is_steady();
  if (auto loss = mode.lost_weights(pass)) {
    pass.owes = 0;
    throw GuardError(*std::move(loss));
  }
  if (auto offence = mode.weights_offence(steady)) throw GuardError(*std::move(offence));
  if (direct != nullptr) direct->before_replay(/*wanted=*/true, steady, pass.unreached_direct);
  if (mode.later().routed) mode.later().routed->vacate_buffers();
  const PassHooks& hooks = subject_->replay_hooks;
  if (hooks.before_backward) hooks.before_backward();
  try {
    pass.weights.replay();
  } catch (...) {
    if (direct != nullptr) direct->undo_replay();
    throw;
  }
  pass.owes = 0;  // a second try would add them twice
  if (direct != nullptr) direct->after_replay();
  Routed routed;
  if (mode.later().routed) routed = take_routed(*mode.later().routed, pass);
  if (hooks.after_backward) hooks.after_backward();
  return routed;
}

}  // namespace pianola::callable
