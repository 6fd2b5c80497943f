#include <pianola/verify/runner.hpp>

#include <pianola/core/error.hpp>
#include <pianola/graph/copy_into.hpp>
#include <pianola/trace/observer_failure.hpp>
#include <pianola/trace/plain_check.hpp>
#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/tensors_of.hpp>
#include <pianola/verify/devices.hpp>
#include <pianola/verify/write_watch.hpp>

#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

namespace pianola::verification {
namespace {

using Clock = std::chrono::steady_clock;

// Calls the user's code; what it throws, whatever it is, becomes a StepError.
void call_user(const std::string& who, const std::function<void()>& code) {
  try {
    code();
  } catch (const c10::OutOfMemoryError& error) {
    throw StepError(fmt::format("{}: out of memory: {}", who, error.what_without_backtrace()));
  } catch (const c10::Error& error) {
    throw StepError(fmt::format("{}: {}", who, error.what_without_backtrace()));
  } catch (const std::exception& error) {
    throw StepError(fmt::format("{}: {}", who, error.what()));
  } catch (...) {
    throw StepError(fmt::format("{}: something that is no std::exception", who));
  }
}

at::Tensor own_copy(const at::Tensor& sample) {
  if (!sample.defined()) return sample;
  at::Tensor copy;
  {
    const trace::QuietScope quiet;
    copy = trace::storage_of(sample) == nullptr ? sample.detach().clone() : graph::static_copy_of(sample);
  }
  return copy.set_requires_grad(sample.requires_grad());
}

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& tensor : tensors) {
    gradients.push_back(tensor.defined() && tensor.is_leaf() ? tensor.grad() : at::Tensor());
  }
  return gradients;
}

at::Tensor entry(const std::vector<at::Tensor>& tensors, std::size_t index) {
  return index < tensors.size() ? tensors[index] : at::Tensor();
}

// By number, as many as the longer list has.
void add_pairs(std::vector<Pair>& pairs, std::string_view name, const char* role, const std::vector<at::Tensor>& eager,
               const std::vector<at::Tensor>& now) {
  for (std::size_t i = 0; i < std::max(eager.size(), now.size()); ++i) {
    pairs.push_back(
        {.name = fmt::format("{} {}", name, i), .role = role, .eager = entry(eager, i), .graphed = entry(now, i)});
  }
}

// By name.
void add_pairs(std::vector<Pair>& pairs, const std::vector<std::string>& names, const char* role,
               const std::vector<at::Tensor>& eager, const std::vector<at::Tensor>& now) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    pairs.push_back({.name = names[i], .role = role, .eager = entry(eager, i), .graphed = entry(now, i)});
  }
}

// What neither can be put back nor compared: it was not seen, or has no bytes to look at.
void check_plain(const char* who, const std::optional<trace::OddWork>& odd, const std::vector<at::Tensor>& results) {
  const auto refuse = [&](const Diagnosis& diagnosis) {
    throw StepError(fmt::format("{} cannot be verified: {}", who, Error(diagnosis).what()));
  };
  if (odd && trace::hides_operations(odd->oddity)) refuse(odd->diagnosis());
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (!results[i].defined()) continue;
    const auto oddity = trace::oddity_in_step(results[i]);
    if (oddity != trace::Oddity::none) refuse(trace::refuse_input(oddity, fmt::format("result {}", i), results[i]));
  }
}

}  // namespace

void Runner::rewind(Side side) {
  wait_for(cuda_devices_in_use());
  state_.rewind(side);
  if (options_.reset) call_user("`reset` threw", options_.reset);
}

std::vector<at::Tensor> Runner::hand_out(int step) const {
  std::vector<at::Tensor> inputs;
  if (options_.inputs.empty()) return inputs;
  const auto& set = options_.inputs[static_cast<std::size_t>(step - 1) % options_.inputs.size()];
  for (const at::Tensor& sample : set) inputs.push_back(own_copy(sample));
  return inputs;
}

// Autocast keeps casts of weights while its region lasts: those of the other side, or of weights before an update, must
// not serve this run.
Outcome Runner::run(Side side, int step, const std::vector<trace::OpObserver*>& watching) {
  Outcome outcome{.inputs = hand_out(step)};
  WriteWatch watch(state_, outcome.inputs);
  std::vector<trace::OpObserver*> observers = {&watch};
  observers.insert(observers.end(), watching.begin(), watching.end());
  at::autocast::clear_cache();
  wait_for(cuda_devices_in_use());
  const auto start = Clock::now();
  const char* const who = side == Side::eager ? "eager" : "the graphed side";
  std::optional<trace::OddWork> odd;
  std::optional<Diagnosis> failure;
  call_user(fmt::format("{} threw in step {}", who, step), [&] {
    {
      const trace::OpStream stream(observers);
      outcome.results = call(side, outcome.inputs);
      odd = stream.odd_work();
      failure = stream.failure();
    }
    wait_for(cuda_devices_in_use());
  });
  check_plain(who, odd, outcome.results);
  time_ = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start);
  at::autocast::clear_cache();
  if (!watch.trouble().empty()) throw std::runtime_error("cannot save what the step writes: " + watch.trouble());
  if (failure) trace::throw_failure(*failure);
  if (side == Side::eager) {
    for (MissingState& missing : watch.missing()) missing_.push_back(std::move(missing));
    for (std::string& draw : watch.unlisted_draws()) draws_.push_back(std::move(draw));
  }
  outcome.input_gradients = gradients_of(outcome.inputs);
  // The values are wanted, not the backward graph that they hold on to.
  for (at::Tensor& result : outcome.results) {
    if (result.defined()) result = result.detach();
  }
  return outcome;
}

void Runner::between(int step) {
  if (!options_.between || step >= options_.steps) return;
  WriteWatch watch(state_, {});
  call_user(fmt::format("`between` threw after step {}", step), [&] {
    const trace::OpStream stream({&watch});
    options_.between(step);
  });
  if (!watch.trouble().empty()) throw std::runtime_error("cannot save what `between` writes: " + watch.trouble());
}

StepRecord Runner::record(const Outcome& outcome, const StepRecord* earlier) const {
  static const StepRecord kNone;
  const StepRecord& last = earlier == nullptr ? kNone : *earlier;
  StepRecord record;
  record.outcome = {.results = copies_.of(outcome.results, last.outcome.results),
                    .inputs = copies_.of(outcome.inputs, last.outcome.inputs),
                    .input_gradients = copies_.of(outcome.input_gradients, last.outcome.input_gradients)};
  record.state = state_.copy(last.state);
  const auto listed = static_cast<std::ptrdiff_t>(state_.leaf_names().size());
  record.gradients = {record.state.gradients.begin(), record.state.gradients.begin() + listed};
  return record;
}

std::vector<Pair> Runner::pairs(const StepRecord& eager, const Outcome& now) const {
  std::vector<Pair> pairs;
  std::vector<std::string> names, gradient_names;
  for (const NamedTensor& state : state_.listed()) names.push_back(state.name);
  for (const std::string& name : state_.leaf_names()) gradient_names.push_back("grad of " + name);
  add_pairs(pairs, "output", "output", eager.outcome.results, now.results);
  add_pairs(pairs, "input", "input", eager.outcome.inputs, now.inputs);
  add_pairs(pairs, "grad of input", "gradient", eager.outcome.input_gradients, now.input_gradients);
  add_pairs(pairs, gradient_names, "gradient", eager.gradients, state_.gradients());
  add_pairs(pairs, names, "state", eager.state.tensors, state_.tensors());
  add_pairs(pairs, state_.generator_names(), "generator", eager.state.generators, state_.generator_states());
  return pairs;
}

}  // namespace pianola::verification
