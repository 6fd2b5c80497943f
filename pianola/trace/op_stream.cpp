#include <pianola/trace/op_stream.hpp>

#include <pianola/trace/compiled_code.hpp>
#include <pianola/trace/made_of_tensors.hpp>
#include <pianola/trace/observer_failure.hpp>
#include <pianola/trace/op_stream_state.hpp>

#include <utility>

namespace pianola::trace {

OpStream::OpStream(std::vector<OpObserver*> observers, ForRanks patience)
    : state_(std::make_shared<OpStreamState>(std::move(observers), patience, OpStreamState::current())) {
  state_->open();
}

OpStream::~OpStream() { state_->close(); }

std::optional<Diagnosis> OpStream::failure() const { return state_->failure().diagnosis(); }

void OpStream::check() const {
  if (auto failed = failure()) throw_failure(*std::move(failed));
}

bool OpStream::is_innermost() const noexcept { return OpStreamState::current() == state_.get(); }

void OpStream::disarm() noexcept { state_->disarm(); }

std::optional<OddWork> OpStream::odd_work() const { return state_->odd_work(); }

std::optional<OddWork> OpStream::communication() const { return state_->communication(); }

std::vector<ReleasedNode> OpStream::released_nodes() const { return state_->released_nodes(); }

bool OpStream::watches_this_thread() noexcept { return OpStreamState::current() != nullptr; }

std::thread::id OpStream::thread_of_step() noexcept {
  const OpStreamState* const state = OpStreamState::current();
  return state == nullptr ? std::this_thread::get_id() : state->step_thread();
}

bool operations_are_watched() noexcept { return OpStream::watches_this_thread(); }

void note_compiled_code(std::string what, bool is_new) {
  OpStreamState* const state = OpStreamState::current();
  if (state == nullptr) return;
  state->note_odd(is_new ? Oddity::compiling : Oddity::compiled, std::move(what), "", state->position());
}

bool runs_python_of_a_tensor() noexcept {
  const OpStreamState* const state = OpStreamState::current();
  return state != nullptr && !state->position().taken_apart.empty();
}

}  // namespace pianola::trace
