#include <pianola/graph/island_call.hpp>

#include <pianola/core/error.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/graph/read_check.hpp>
#include <pianola/trace/describe.hpp>
#include <pianola/trace/quiet_scope.hpp>

#include <ATen/SequenceNumber.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#if PIANOLA_WITH_CUDA
#include <pianola/cuda/capture_info.hpp>

#include <c10/cuda/CUDAStream.h>
#endif

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace pianola::graph {

namespace autograd = torch::autograd;

namespace {

// Whether a capture records on this thread, or on the current stream: the engine of autograd has threads of its own.
bool is_recorded([[maybe_unused]] c10::Device device) {
  if (Islands::step_is_recorded()) return true;
#if PIANOLA_WITH_CUDA
  if (device.is_cuda()) {
    return capture_status(c10::cuda::getCurrentCUDAStream(device.index()).stream()) != CaptureStatus::none;
  }
#endif
  return false;
}

IslandSample sample_of(const at::Tensor& tensor) {
  const trace::QuietScope quiet;
  const at::Tensor plain = tensor.detach();
  const at::Tensor like = plain.is_cpu()
                              ? plain.clone()
                              : at::empty_strided(plain.sizes(), plain.strides(), plain.options().device(c10::kMeta));
  return {.like = like, .device = tensor.device(), .requires_grad = tensor.requires_grad()};
}

at::Tensor blank_of(const IslandSample& sample) {
  if (sample.like.is_cpu()) return sample.like.clone();
  return at::empty_strided(sample.like.sizes(), sample.like.strides(), sample.like.options().device(sample.device));
}

bool fits(const at::Tensor& tensor, const IslandSample& sample) {
  return tensor.sizes() == sample.like.sizes() && tensor.scalar_type() == sample.like.scalar_type() &&
         tensor.device() == sample.device;
}

bool may_require_grad(const at::Tensor& tensor) { return tensor.is_floating_point() || tensor.is_complex(); }

}  // namespace

void refuse_island(const IslandFunction& function, const std::string& what, std::string fix) {
  throw UsageError({.what = fmt::format("{}, which stays eager, {}", function.name, what), .fix = std::move(fix)});
}

Island::Island(IslandFunction function, const std::vector<at::Tensor>& inputs, std::optional<IslandNotes> expected)
    : function_(std::move(function)),
      device_(inputs.empty() ? c10::Device(c10::kCPU) : inputs[0].device()),
      surroundings_(device_.type()),
      expected_(std::move(expected)) {
  notes_.function = function_.number;
  notes_.is_found = function_.is_found;
  for (const at::Tensor& input : inputs) {
    takes_gradient_.push_back(surroundings_.grad() && input.requires_grad() && may_require_grad(input));
    const bool is_leaf = input.requires_grad() && input.is_leaf();
    own_leaves_.push_back(is_leaf ? trace::WeakTensor(input.getIntrusivePtr())
                                  : trace::WeakTensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()));
  }
}

std::vector<at::Tensor> Island::run(const std::vector<at::Tensor>& inputs, const IslandNumbers& numbers) {
  const Surroundings::Entered as_in_the_step(surroundings_);
  const RunningIsland now;
  forget();
  given_.clear();
  std::vector<std::uint32_t> versions;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    auto leaf = own_leaves_.at(i).lock();
    at::Tensor own = leaf ? at::Tensor(std::move(leaf)) : inputs[i].detach();
    if (takes_gradient_.at(i) && !own.requires_grad()) own.requires_grad_();
    versions.push_back(own.is_inference() ? 0 : own._version());
    given_.push_back(std::move(own));
  }
  const std::uint64_t began = at::sequence_number::peek();
  note_gradients();
  IslandResult result = call(numbers);
  if (!gradients_are_as_noted()) {
    refuse("makes or drops gradients that the graph uses", "call zero_grad() and backward() in the step itself");
  }
  results_ = std::move(result.tensors);
  if (!expected_) notes_.structure = std::move(result.structure);
  for (std::size_t i = 0; i < given_.size(); ++i) {
    const bool is_written = !given_[i].is_inference() && given_[i]._version() != versions[i];
    if (is_written)
      refuse(fmt::format("writes its argument {} in place", i),
             "return the result instead; the step may copy it there");
    if (own_leaves_[i].expired() && given_[i].requires_grad() && !autograd::impl::hooks(given_[i]).empty()) {
      refuse(fmt::format("sets a hook on its argument {}", i), "set it in the step, before the call");
    }
  }
  check_own_gradients();
  for (at::Tensor& one : results_) {
    if (one.is_leaf() && one.requires_grad()) one = one.view_as(one);  // an edge leads to it
  }
  find_uses(given_, began);
  return handed_out(inputs);
}

// What torch throws in one that was found it would perhaps not throw in eager, where arguments have their history: the call that
// follows tells.
IslandResult Island::call(const IslandNumbers& numbers) const {
  if (!function_.is_found) return function_.run(given_, numbers);
  try {
    return function_.run(given_, numbers);
  } catch (const c10::Error& error) {
    refuse(fmt::format("throws: {}", error.what_without_backtrace()), "");
  }
}

// Of the step's leaves, where they are known. What the graph makes anew behind the function is not to be added to here, either.
// Asked without a reference to the leaf: the first one that C++ has to what Python holds takes Python's lock, and so does its end.
Island::Gradient Island::gradient_now(const StepLeaf& of) {
  if (of.leaf.expired()) return {};
  const auto* const meta = static_cast<autograd::AutogradMeta*>(of.leaf._unsafe_get_target()->autograd_meta());
  if (meta == nullptr || !meta->grad_.defined()) return {};
  const at::Tensor& gradient = meta->grad_;
  return {.tensor = gradient.unsafeGetTensorImpl(), .writes = of.has_gradient ? 0 : gradient._version()};
}

void Island::note_gradients() {
  for (StepLeaf& known : step_leaves_) known.noted = gradient_now(known);
}

bool Island::gradients_are_as_noted() const {
  return std::all_of(step_leaves_.begin(), step_leaves_.end(),
                     [](const StepLeaf& known) { return gradient_now(known) == known.noted; });
}

void Island::know_leaves(const std::vector<trace::WeakTensor>& leaves) {
  for (const trace::WeakTensor& weak : leaves) {
    auto leaf = weak.lock();
    const bool has_gradient = leaf && at::Tensor(leaf).grad().defined();
    step_leaves_.push_back({.leaf = weak, .has_gradient = has_gradient, .noted = {}});
  }
}

// A backward pass that began in the function, or at what it keeps, ends at its own tensors.
void Island::check_own_gradients() const {
  for (std::size_t i = 0; i < given_.size(); ++i) {
    if (!own_leaves_[i].expired() || !given_[i].is_leaf() || !given_[i].requires_grad() || !given_[i].grad().defined())
      continue;
    refuse(fmt::format("sends its argument {} a gradient by itself, which would go no further", i),
           "return what backward() is called on, and call it in the step");
  }
}

// Without history; and not the memory of an argument, or of a parameter.
std::vector<at::Tensor> Island::handed_out(const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> all;
  copies_.clear();
  if (results_.empty()) return all;
  const trace::QuietScope quiet;
  for (std::size_t k = 0; k < results_.size(); ++k) {
    const at::Tensor result = results_[k].detach();
    for (std::size_t other = 0; other < k; ++other) {
      if (!result.is_alias_of(results_[other])) continue;
      refuse(fmt::format("returns results {} and {} that share memory", other, k), "return a copy: result.clone()");
    }
    const auto source =
        std::find_if(inputs.begin(), inputs.end(), [&](const at::Tensor& input) { return result.is_alias_of(input); });
    const bool is_parameter =
        results_[k].is_view() && results_[k]._base().is_leaf() && results_[k]._base().requires_grad();
    all.push_back(source != inputs.end() || is_parameter ? result.clone() : result.resolve_conj().resolve_neg());
    if (source != inputs.end() && !expected_ && !result.is_inference()) {
      copies_.push_back(
          {.argument = result, .copy = all.back(), .versions = {result._version(), all.back()._version()}});
    }
  }
  return all;
}

// What the step does in place to one of them behind the call, it would do to both in eager.
void Island::check_copies() const {
  for (const Copy& one : copies_) {
    if (std::array{one.argument._version(), one.copy._version()} == one.versions) continue;
    refuse("returns an argument, which is written in place behind the call", "return a copy: argument.clone()");
  }
}

// Where autograd would send gradients: to inputs, and to parameters of the function's own.
void Island::find_uses(const std::vector<at::Tensor>& given, std::uint64_t began) {
  if (results_.empty() && (!expected_ || expected_->uses.empty())) return;
  const auto uses = uses_of_leaves(results_, [&](const autograd::Node& node) {
    if (node.sequence_nr() >= began) return;
    refuse("uses a tensor with history that it was not given", "pass it as an argument");
  });
  number_uses(uses, given);
}

// Each gets a leaf of its own.
void Island::number_uses(const std::vector<LeafUse>& uses, const std::vector<at::Tensor>& given) {
  std::vector<at::Tensor> all = given;
  if (expected_) {
    for (const trace::WeakTensor& known : expected_->parameters) {
      auto held = known.lock();
      if (!held) refuse_other_gradients();
      all.emplace_back(std::move(held));
    }
  }
  std::vector<std::pair<std::size_t, LeafUse>> numbered;  // as IslandNotes::uses
  for (const LeafUse& use : uses) {
    const auto known =
        std::find_if(all.begin(), all.end(), [&](const at::Tensor& one) { return one.is_same(use.leaf); });
    numbered.emplace_back(static_cast<std::size_t>(known - all.begin()), use);
    if (known != all.end()) continue;
    if (expected_) refuse_other_gradients();
    all.push_back(use.leaf);
    notes_.parameters.emplace_back(use.leaf.getIntrusivePtr());
  }
  std::stable_sort(numbered.begin(), numbered.end(), [](const auto& one, const auto& other) {
    return one.first != other.first ? one.first < other.first : one.second.at > other.second.at;
  });
  std::vector<std::size_t> numbers;
  for (const auto& [which, use] : numbered) {
    numbers.push_back(which);
    leaves_.push_back(use.split_off());
  }
  if (!expected_) {
    notes_.uses = std::move(numbers);
  } else if (numbers != expected_->uses) {
    refuse_other_gradients();
  }
}

void Island::check_results(const std::vector<at::Tensor>& results) const {
  const std::vector<IslandSample>& expected = expected_->results;
  bool all_fit = results.size() == expected.size();
  for (std::size_t i = 0; all_fit && i < results.size(); ++i) all_fit = fits(results[i], expected[i]);
  if (all_fit) return;
  std::string now, before;
  for (const at::Tensor& result : results) now += (now.empty() ? "" : ", ") + trace::describe(result);
  for (const IslandSample& one : expected) before += (before.empty() ? "" : ", ") + trace::describe(one.like);
  refuse(fmt::format(
             "returned ({}) in a replay, and ({}) when the step was captured; what the step does before it has run",
             now, before),
         "let it return tensors of the same shapes and types in each call, padded if need be");
}

std::vector<at::Tensor> Island::forward(const std::vector<at::Tensor>& inputs, const IslandNumbers& numbers) {
  if (expected_ && is_recorded(device_)) {
    const trace::QuietScope quiet;
    if (!expected_->uses.empty()) {
      for (const at::Tensor& input : inputs) recorded_inputs_.push_back(input.detach());
    }
    std::vector<at::Tensor> blank;
    for (const IslandSample& sample : expected_->results) blank.push_back(blank_of(sample));
    return blank;
  }
  std::vector<at::Tensor> results = run(inputs, numbers);
  if (expected_) {
    check_results(results);
  } else {
    for (const at::Tensor& result : results_) notes_.results.push_back(sample_of(result));
  }
  if (leaves_.empty()) forget();  // no backward pass comes
  return results;
}

std::vector<at::Tensor> Island::backward(const std::vector<at::Tensor>& gradients, const std::vector<std::int64_t>& of,
                                         bool keep) {
  if (expected_ && is_recorded(device_)) {
    const trace::QuietScope quiet;
    if (!keep) recorded_inputs_.clear();
    std::vector<at::Tensor> blank;
    for (const auto& sample : expected_->gradients) {
      if (sample) blank.push_back(blank_of(*sample));
    }
    return blank;
  }
  autograd::variable_list made;
  {
    const Surroundings::Entered as_in_the_step(surroundings_);
    const RunningIsland now;
    autograd::variable_list results;
    for (const std::int64_t result : of) results.push_back(results_.at(static_cast<std::size_t>(result)));
    made = autograd::grad(results, leaves_, gradients, /*retain_graph=*/keep,
                          /*create_graph=*/false, /*allow_unused=*/true);
    if (!keep) forget();
  }
  const trace::QuietScope quiet;
  if (!expected_) {
    notes_.gradients.clear();
    for (const at::Tensor& one : made) {
      notes_.gradients.push_back(one.defined() ? std::optional(sample_of(one)) : std::nullopt);
    }
  }
  std::vector<at::Tensor> all;
  const std::vector<bool> defined = gradients_defined();
  for (std::size_t i = 0; i < made.size(); ++i) {
    if (made[i].defined() != defined.at(i)) refuse_other_gradients();
    if (made[i].defined()) all.push_back(made[i]);
  }
  return all;
}

void Island::refuse(const std::string& what, std::string fix) const {
  if (expected_ && function_.is_found) {
    throw OtherValue({.what = fmt::format("{}, which was found to read what changes, {}", function_.name, what),
                      .fix = "nothing: the call is made eagerly"});
  }
  if (function_.is_found)
    throw UnfitIsland(fmt::format("{}, which was found to read what changes, {}", function_.name, what));
  refuse_island(function_, what, std::move(fix));
}

void Island::refuse_other_gradients() const {
  refuse("gives other gradients in a replay than when the step was captured; what the step does before it has run",
         "let it use the same tensors in the same places in each call, with no rows if need be");
}

}  // namespace pianola::graph
