#include <pianola/callable/captured_callable.hpp>

#include <pianola/core/error.hpp>
#include <pianola/graph/open_capture.hpp>
#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

namespace pianola::callable {

namespace autograd = torch::autograd;

namespace {

// Each is a tensor of its own, for a history of its own, but shares the counter of writes: a replay counts as one, so
// that autograd refuses a backward through what a later call has overwritten.
at::Tensor hand_out(const at::Tensor& output) {
  c10::TensorImpl* impl = output.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(), /*allow_tensor_metadata_change=*/true));
}

// Some share a counter: all are counted before any is read.
void count_writes(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.unsafeGetTensorImpl()->version_counter().enabled()) tensor.unsafeGetTensorImpl()->bump_version();
  }
}

void note_versions(const std::vector<at::Tensor>& tensors, std::vector<std::uint32_t>& versions) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const c10::VariableVersion& counter = tensors[i].unsafeGetTensorImpl()->version_counter();
    if (counter.enabled()) versions[i] = counter.current_version();
  }
}

// Autograd then refuses writes through it, as through what a custom Function returns: the history that it would have to
// rewrite is the graph's.
void forbid_writes_to_view(const at::Tensor& output) {
  auto* view = autograd::impl::get_view_autograd_meta(output);
  if (view != nullptr && view->has_bw_view()) view->set_creation_meta(autograd::CreationMeta::IN_CUSTOM_FUNCTION);
}

// The next replay overwrites what a node is given. Most hand it on, or a view of it, and in the end it may be `p.grad`.
bool copies_its_gradient(autograd::Node* node) {
  if (node == nullptr) return true;
  if (!node->tensor_pre_hooks().empty() || !node->pre_hooks().empty()) return false;
  return dynamic_cast<const autograd::AccumulateGrad*>(node) != nullptr ||  // as others refer to it, too
         dynamic_cast<const BackwardNode*>(node) != nullptr;
}

bool is_memory_of(const at::Tensor& tensor, const Pass& pass) {
  return std::any_of(pass.outputs.begin(), pass.outputs.end(),
                     [&](const at::Tensor& output) { return trace::storage_of(output) == trace::storage_of(tensor); });
}

}  // namespace

CapturedCallable::CapturedCallable(std::shared_ptr<const Subject> subject, const CallableOptions& options,
                                   c10::Device device, GraphPoolRef pool, int layer, std::shared_ptr<ScheduleTurn> turn)
    : subject_(std::move(subject)),
      options_(options),
      device_(device),
      pool_(std::move(pool)),
      layer_(layer),
      turn_(std::move(turn)) {}

void CapturedCallable::check_alive(const char* call) const {
  if (!alive_) [[unlikely]] {
    throw UsageError({.what = fmt::format("{} was called on a graphed callable that was reset", call),
                      .where = subject_->name,
                      .fix = "make it again with make_graphed_callable, or call the original"});
  }
  if (graph::capture_is_open()) [[unlikely]] {
    throw UsageError({.what = fmt::format("{} was called on a graphed callable while a capture is open on this thread; "
                                          "graphs do not nest",
                                          call),
                      .where = subject_->name,
                      .fix = "call the original inside the captured step"});
  }
}

Mode CapturedCallable::current_mode() const {
  return {.training = subject_->module->training(), .gradients = at::GradMode::is_enabled()};
}

int CapturedCallable::slots() const {
  return turn_ == nullptr ? options_.slots : turn_->plan().slots(turn_->chunk_of(layer_));
}

CapturedMode* CapturedCallable::mode_for(std::span<const at::Tensor> inputs) {
  const Mode now = current_mode();
  CapturedMode* mode = modes_[now.index()].get();
  if (mode == nullptr) return mode_not_captured(now, inputs);
  if (mode->accepts(inputs)) [[likely]]
    return mode;
  if (options_.on_mismatch == OnMismatch::eager) return nullptr;
  const std::vector<std::string> differences = mode->differences(inputs);
  throw GuardError({.what = fmt::format("the call differs from what was captured; nothing was launched\n    {}",
                                        fmt::join(differences, "\n    ")),
                    .where = subject_->name,
                    .fix = "call it as captured, or capture it as it is now, or set on_mismatch to OnMismatch::eager"});
}

CapturedMode* CapturedCallable::mode_not_captured(Mode mode, std::span<const at::Tensor> inputs) {
  switch (options_.on_other_mode) {
    case OnOtherMode::eager:
      return nullptr;
    case OnOtherMode::capture:
      add(capture_mode(*subject_, mode, inputs, options_, slots(), device_));
      return modes_[mode.index()].get();
    case OnOtherMode::refuse:
      break;
  }
  std::vector<std::string> captured;
  for (const auto& known : modes_) {
    if (known != nullptr) captured.push_back(in_words(known->mode()));
  }
  throw GuardError({.what = fmt::format("the call is {}, but the callable was captured {}; nothing was launched",
                                        in_words(mode), fmt::join(captured, " and ")),
                    .where = subject_->name,
                    .fix =
                        "set CallableOptions::evaluation to capture the evaluation mode as well, or on_other_mode to "
                        "OnOtherMode::eager or OnOtherMode::capture"});
}

std::vector<at::Tensor> CapturedCallable::call(std::span<const at::Tensor> inputs) {
  std::optional<OneCall::Scope> one_call(std::in_place, one_call_, "call()", kSubject);
  check_alive("call()");
  if (inputs.size() != subject_->inputs.leaves()) {  // too many or too few for the original, too
    throw GuardError({.what = fmt::format("inputs: captured {} tensors, received {}; nothing was launched",
                                          subject_->inputs.leaves(), inputs.size()),
                      .where = subject_->name,
                      .fix = "pass the tensors of the sample's arguments, or use forward() for other arguments"});
  }
  CapturedMode* mode = mode_for(inputs);
  if (mode != nullptr) [[likely]]
    return replay(*mode, inputs);
  one_call.reset();  // eager calls may run side by side
  const c10::IValue value = subject_->run(inputs);
  std::vector<at::Tensor> leaves;
  (void)Structure(value, "output").flatten(value, leaves);
  return leaves;
}

c10::IValue CapturedCallable::forward(const std::vector<c10::IValue>& inputs) {
  std::optional<OneCall::Scope> one_call(std::in_place, one_call_, "forward()", kSubject);
  check_alive("forward()");
  std::vector<at::Tensor> leaves;
  if (auto difference = subject_->inputs.flatten(c10::ivalue::Tuple::create(inputs), leaves)) {
    if (options_.on_mismatch == OnMismatch::eager) {
      one_call.reset();
      return subject_->callable(inputs);
    }
    throw GuardError(
        {.what = fmt::format("the call differs from what was captured; nothing was launched\n    {}", *difference),
         .where = subject_->name,
         .fix = "call it as captured, or set on_mismatch to OnMismatch::eager"});
  }
  CapturedMode* mode = mode_for(leaves);
  if (mode == nullptr) {
    one_call.reset();
    return subject_->callable(inputs);
  }
  return mode->outputs().rebuild(replay(*mode, leaves));
}

Pass& CapturedCallable::next_pass(const CapturedMode& mode) const {
  for (const auto& pass : mode.passes()) {
    if (!pass->in_flight()) return *pass;
  }
  Pass* const oldest = options_.on_full == OnFull::overtake ? oldest_pass(mode) : nullptr;
  if (oldest != nullptr) return *oldest;
  const auto& passes = mode.passes();
  const auto owing = std::count_if(passes.begin(), passes.end(), [](const auto& pass) { return pass->owes != 0; });
  if (owing != 0) {
    throw UsageError(
        {.what = fmt::format("no slot is free: {} of {} calls wait for backward_weights() (backward_dw() in "
                             "Python), which computes what their backward left for later; nothing was launched",
                             owing, passes.size()),
         .where = subject_->name,
         .fix = "call it once for each backward, or set CallableOptions::slots to the number of calls in flight",
         .rule = "PG907"});
  }
  throw UsageError(
      {.what = fmt::format("no slot is free: {} of {} calls are in flight, between forward and backward; nothing was "
                           "launched",
                           mode.passes().size(), mode.passes().size()),
       .where = subject_->name,
       .fix = "run their backward first, release outputs that need none, or set CallableOptions::slots to the number "
              "of calls in flight",
       .rule = "PG907"});
}

// Of those that nobody needs but a backward that may never come: what one has left for later is not lost.
Pass* CapturedCallable::oldest_pass(const CapturedMode& mode) {
  Pass* oldest = nullptr;
  for (const auto& pass : mode.passes()) {
    if (pass->owes == 0 && (oldest == nullptr || pass->holder.load() < oldest->holder.load())) oldest = pass.get();
  }
  return oldest;
}

CapturedCallable::Turn CapturedCallable::take_turn(CapturedMode& mode) const {
  if (turn_ == nullptr || !mode.has_backward()) return {.pass = &next_pass(mode), .microbatch = 0};
  const ScheduleTurn::Place place = turn_->forward(layer_);
  Pass& pass = *mode.passes()[static_cast<std::size_t>(place.slot)];
  forgive(pass);
  if (pass.in_flight()) (void)next_pass(mode);
  return {.pass = &pass, .microbatch = place.microbatch};
}

std::vector<at::Tensor> CapturedCallable::replay(CapturedMode& mode, std::span<const at::Tensor> inputs) {
  const auto [pass, microbatch] = take_turn(mode);
  const PassHooks& hooks = subject_->replay_hooks;
  if (hooks.before_forward) hooks.before_forward();
  ResultCopies copies = options_.output == OutputPolicy::clone
                            ? ResultCopies(mode.origins().own_memory(pass->outputs, pass->regions))
                            : ResultCopies();
  launch_forward(*pass, inputs);
  if (hooks.after_forward) hooks.after_forward();
  std::vector<at::Tensor> outputs = outputs_of(mode, *pass, inputs, copies);
  if (mode.has_backward()) {
    connect(mode, *pass, microbatch, inputs, outputs);
    if (turn_ != nullptr) turn_->advance();
  }
  const auto& of_leaf = mode.output_of_leaf();
  if (of_leaf.size() == outputs.size()) return outputs;
  std::vector<at::Tensor> leaves;
  leaves.reserve(of_leaf.size());
  for (const std::size_t position : of_leaf) leaves.push_back(outputs[position]);
  return leaves;
}

// A pass that is overtaken is nobody's from here on: its activations are gone, whether the replay ends well or not. And one
// that throws half way (the tape's do) has written as well: what earlier calls returned of this pass is no longer theirs.
void CapturedCallable::launch_forward(Pass& pass, std::span<const at::Tensor> inputs) const {
  pass.holder = 0;
  try {
    pass.forward.replay(inputs);
  } catch (...) {
    pass.handed_out.clear();
    count_writes(pass.outputs);
    note_versions(pass.outputs, pass.output_versions);
    throw;
  }
  count_writes(pass.outputs);
  note_versions(pass.inputs, pass.input_versions);
  note_versions(pass.outputs, pass.output_versions);
}

std::vector<at::Tensor> CapturedCallable::outputs_of(const CapturedMode& mode, Pass& pass,
                                                     std::span<const at::Tensor> inputs, ResultCopies& copies) const {
  const bool clone = options_.output == OutputPolicy::clone;
  const auto fresh = [&](const at::Tensor& output) { return clone ? copies.copy(output) : hand_out(output); };
  std::vector<at::Tensor> outputs = mode.origins().give_out({.inputs = inputs,
                                                             .outputs = pass.outputs,
                                                             .regions = pass.regions,
                                                             .fresh = fresh,
                                                             .differentiable = &mode.differentiable()});
  if (clone) return outputs;
  pass.handed_out.clear();
  for (const at::Tensor& output : outputs) pass.handed_out.emplace_back(output.getIntrusivePtr());
  return outputs;
}

void CapturedCallable::connect(CapturedMode& mode, Pass& pass, int microbatch, std::span<const at::Tensor> inputs,
                               const std::vector<at::Tensor>& outputs) {
  const auto node = torch_abi::make_node<BackwardNode>(shared_from_this(), mode, pass, ++calls_, microbatch);
  autograd::edge_list edges;
  edges.reserve(mode.input_uses().size() + (mode.routed() != nullptr ? mode.routed()->parameters().size() : 0));
  for (const std::size_t i : mode.input_uses()) edges.push_back(autograd::impl::gradient_edge(inputs[i]));
  if (mode.routed() != nullptr) {
    for (const at::Tensor& parameter : mode.routed()->parameters()) {
      edges.push_back(autograd::impl::gradient_edge(parameter));
    }
  }
  node->set_next_edges(std::move(edges));
  for (const std::size_t i : mode.differentiable()) {
    const std::uint32_t number = node->add_input_metadata(outputs[i]);
    autograd::impl::set_gradient_edge(outputs[i], {node, number});
    forbid_writes_to_view(outputs[i]);
  }
  mode.note_call(pass, node);
}

autograd::variable_list CapturedCallable::backward(const BackwardNode& node, const autograd::variable_list& gradients) {
  const OneCall::Scope one_call(one_call_, "backward()", kSubject);
  check_alive("backward()");
  CapturedMode& mode = node.mode();
  Pass& pass = node.pass();
  ParameterGradients* direct = mode.direct();
  const bool steady = direct == nullptr || direct->is_steady();
  if (auto offence = mode.backward_offence(pass, steady)) throw GuardError(*std::move(offence));
  if (turn_ != nullptr) turn_->check_backward(layer_, node.microbatch());

  // Empty where backward() wants all gradients; else only those of what is named, and `p.grad` must stay as it is.
  const auto* selected = autograd::get_current_graph_task_exec_info();
  const bool for_all = selected == nullptr || selected->empty();
  // Outputs that did not reach the loss: what only they depend on gets no gradient.
  CapturedMode::Unreached unreached;
  if (!std::all_of(gradients.begin(), gradients.end(), [](const at::Tensor& one) { return one.defined(); })) {
    unreached = mode.unreached(gradients);
  }
  const std::vector<std::size_t> wanted = wanted_of_exposed(node, for_all, unreached.direct);
  if (subject_->replay_hooks.before_backward) subject_->replay_hooks.before_backward();
  if (direct != nullptr) direct->before_replay(for_all, steady, unreached.direct, /*apart=*/!wanted.empty());
  if (mode.routed() != nullptr) mode.routed()->vacate_buffers();
  launch_backward(mode, pass, gradients);
  std::vector<at::Tensor> of_exposed;
  if (!wanted.empty()) of_exposed = direct->computed(select(node.exposed(), wanted));
  if (direct != nullptr) direct->after_replay();
  if (turn_ != nullptr) turn_->advance();
  if (mode.delays() && for_all) {
    note_debt(node, unreached);
    if (computes_at_once_) accumulate(launch_weights(mode, pass));
  }
  if (subject_->replay_hooks.after_backward) subject_->replay_hooks.after_backward();

  autograd::variable_list result = gradients_of_edges(node, for_all, unreached);
  const std::size_t first = result.size();
  result.resize(first + node.exposed().size());
  for (std::size_t k = 0; k < wanted.size(); ++k) result[first + wanted[k]] = std::move(of_exposed[k]);
  return result;
}

// Positions among BackwardNode::exposed(). Where all gradients are wanted the graph adds them up itself, as ever.
std::vector<std::size_t> CapturedCallable::wanted_of_exposed(const BackwardNode& node, bool for_all,
                                                             const std::vector<std::size_t>& unreached) {
  std::vector<std::size_t> wanted;
  if (for_all) return wanted;
  const std::size_t first = node.num_outputs() - node.exposed().size();
  for (std::size_t k = 0; k < node.exposed().size(); ++k) {
    const bool flows = std::find(unreached.begin(), unreached.end(), node.exposed()[k]) == unreached.end();
    if (flows && node.task_should_compute_output(first + k)) wanted.push_back(k);
  }
  return wanted;
}

// The graph adds to gradients at its end: one that throws has added nothing, and eager would leave them undefined, or as they
// were.
void CapturedCallable::launch_backward(CapturedMode& mode, Pass& pass, std::span<const at::Tensor> gradients) {
  ParameterGradients* direct = mode.direct();
  try {
    pass.backward.replay(gradients);
  } catch (...) {
    if (direct != nullptr) direct->undo_replay();
    throw;
  }
}

autograd::variable_list CapturedCallable::gradients_of_edges(const BackwardNode& node, bool for_all,
                                                             const CapturedMode::Unreached& unreached) const {
  const CapturedMode& mode = node.mode();
  const bool is_hooked = !node.post_hooks().empty();
  autograd::variable_list result;
  result.reserve(node.num_outputs());
  for (std::size_t use = 0; use < mode.input_uses().size(); ++use) {
    const auto& unused = unreached.inputs;
    const bool flows = std::find(unused.begin(), unused.end(), mode.input_uses()[use]) == unused.end();
    at::Tensor gradient = flows ? node.pass().input_gradients[use] : at::Tensor();
    const bool may_be_kept = !for_all || is_hooked || !copies_its_gradient(node.next_edge(use).function.get());
    if (may_be_kept && gradient.defined()) {
      const trace::QuietScope quiet;
      gradient = gradient.clone();
    }
    result.push_back(std::move(gradient));
  }
  if (node.mode().routed() != nullptr) add_routed(node, unreached.routed, result);
  return result;
}

// Only what autograd asks for: it would drop the others.
void CapturedCallable::add_routed(const BackwardNode& node, const std::vector<std::size_t>& unreached,
                                  autograd::variable_list& gradients) const {
  RoutedGradients& routed = *node.mode().routed();
  const std::size_t first = gradients.size();
  std::vector<std::size_t> wanted;
  for (std::size_t k = 0; k < routed.parameters().size(); ++k) {
    const bool flows = !std::binary_search(unreached.begin(), unreached.end(), k);
    if (flows && node.task_should_compute_output(first + k)) wanted.push_back(k);
  }
  std::vector<at::Tensor> handed_out = routed.hand_out(wanted);
  gradients.resize(first + routed.parameters().size());
  for (std::size_t j = 0; j < wanted.size(); ++j) gradients[first + wanted[j]] = std::move(handed_out[j]);
}

std::vector<at::Tensor> CapturedCallable::static_inputs() const {
  check_alive("static_inputs()");
  const CapturedMode* mode = modes_[current_mode().index()].get();
  if (mode == nullptr) {
    throw UsageError(
        {.what = fmt::format("there are no static inputs {}: the mode was not captured", in_words(current_mode())),
         .where = subject_->name});
  }
  const Pass* pass = nullptr;
  if (turn_ != nullptr && mode->has_backward()) {
    pass = mode->passes()[static_cast<std::size_t>(turn_->forward(layer_).slot)].get();
  } else {
    pass = &next_pass(*mode);
  }
  std::vector<at::Tensor> result;
  for (const at::Tensor& input : pass->inputs) result.push_back(hand_out(input));
  return result;
}

std::vector<at::Tensor> CapturedCallable::all_static_inputs() const {
  std::vector<at::Tensor> result;
  for (const auto& mode : modes_) {
    if (mode == nullptr) continue;
    for (const auto& pass : mode->passes()) result.insert(result.end(), pass->inputs.begin(), pass->inputs.end());
  }
  return result;
}

void CapturedCallable::check_current(const at::Tensor& output) const {
  if (options_.output == OutputPolicy::clone) return;
  for (const auto& mode : modes_) {
    if (mode == nullptr) continue;
    for (const auto& pass : mode->passes()) {
      const bool fresh = std::any_of(pass->handed_out.begin(), pass->handed_out.end(), [&](const auto& handle) {
        return handle._unsafe_get_target() == output.unsafeGetTensorImpl();
      });
      if (fresh) return;
      if (output.is_view() || !is_memory_of(output, *pass)) continue;
      throw ReplayError(
          {.what = "the tensor is an output of an earlier call, whose memory a later call has overwritten",
           .where = subject_->name,
           .fix = "read or clone() outputs before the next call, set OutputPolicy::clone, or use more slots",
           .rule = "PG901"});
    }
  }
  throw UsageError({.what = "the tensor is no output of this callable", .where = subject_->name});
}

int CapturedCallable::in_flight() const noexcept {
  int count = 0;
  for (const auto& mode : modes_) {
    if (mode == nullptr) continue;
    for (const auto& pass : mode->passes()) count += pass->in_flight() ? 1 : 0;
  }
  return count;
}

ScheduleTurn& CapturedCallable::turn() const {
  if (turn_ == nullptr) throw UsageError({.what = "the callable was made without a schedule", .where = subject_->name});
  return *turn_;
}

int CapturedCallable::next_microbatch() const { return turn().forward(layer_).microbatch; }

void CapturedCallable::restart_schedule() {
  const OneCall::Scope one_call(one_call_, "restart_schedule()", kSubject);
  turn().restart();
}

// The modes live on, empty, for the nodes of calls in flight.
void CapturedCallable::reset() {
  std::exception_ptr failure;
  try {
    while (alive_ && turn_ == nullptr && find_debt().pass != nullptr) backward_weights();
  } catch (...) {
    failure = std::current_exception();
  }
  const OneCall::Scope one_call(one_call_, "reset()", kSubject);
  alive_ = false;
  for (const auto& mode : modes_) {
    if (mode != nullptr) mode->release();
  }
  pool_ = {};
  if (failure) std::rethrow_exception(failure);
}

GraphPoolRef CapturedCallable::pool() const {
  check_alive("pool()");
  return pool_;
}

}  // namespace pianola::callable
