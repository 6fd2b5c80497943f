#include <pianola/graph/island.hpp>

#include <pianola/core/error.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/graph/open_capture.hpp>
#include <pianola/torch_abi/autograd_node.hpp>
#include <pianola/trace/describe.hpp>
#include <pianola/trace/quiet_scope.hpp>

#include <ATen/SavedTensorHooks.h>
#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#if PIANOLA_WITH_CUDA
#include <pianola/cuda/capture_info.hpp>

#include <c10/cuda/CUDAStream.h>
#endif

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <unordered_set>
#include <utility>

namespace pianola::graph {
namespace {

namespace autograd = torch::autograd;

constexpr const char* kForward = "pianola::island";
constexpr const char* kBackward = "pianola::island_backward";

thread_local Islands* open_islands = nullptr;
thread_local int running = 0;

// While the function of an island runs: what it calls is part of it.
class Running {
 public:
  Running() : outer_(std::exchange(open_islands, nullptr)) { ++running; }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  ~Running() {
    --running;
    open_islands = outer_;
  }

 private:
  Islands* outer_;
};

// Whether a capture records on this thread, or on the current stream: the engine of autograd has threads of its own.
bool is_recorded([[maybe_unused]] c10::Device device) {
  if (is_recording()) return true;
#if PIANOLA_WITH_CUDA
  if (device.is_cuda()) {
    return capture_status(c10::cuda::getCurrentCUDAStream(device.index()).stream()) != CaptureStatus::none;
  }
#endif
  return false;
}

// Autograd, autocast and the like of the user's code.
class Surroundings {
 public:
  explicit Surroundings(c10::DeviceType device)
      : keys_(c10::impl::tls_local_dispatch_key_set()),
        grad_(at::GradMode::is_enabled()),
        device_(device),
        autocast_(at::autocast::is_autocast_enabled(device) ? at::autocast::get_autocast_dtype(device)
                                                            : c10::ScalarType::Undefined) {}

  [[nodiscard]] bool grad() const noexcept { return grad_; }

  class Entered {
   public:
    explicit Entered(const Surroundings& surroundings)
        : keys_(surroundings.keys_), grad_(surroundings.grad_), device_(surroundings.device_) {
      if (surroundings.autocast_ == c10::ScalarType::Undefined) return;
      before_ = at::autocast::get_autocast_dtype(device_);
      at::autocast::set_autocast_dtype(device_, surroundings.autocast_);
    }
    Entered(const Entered&) = delete;
    Entered& operator=(const Entered&) = delete;
    ~Entered() {
      if (!before_) return;
      at::autocast::set_autocast_dtype(device_, *before_);
      at::autocast::clear_cache();  // a replay is in no region, whose end would
    }

   private:
    at::DisableRecordFunctionGuard unrecorded_;
    c10::impl::ForceDispatchKeyGuard keys_;
    at::AutoGradMode grad_;
    c10::DeviceType device_;
    std::optional<c10::ScalarType> before_;
  };

 private:
  c10::impl::LocalDispatchKeySet keys_;
  bool grad_;
  c10::DeviceType device_;
  c10::ScalarType autocast_;
};

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

/// One call of a function, in one run of a step and in the replays of its graph.
class Island final : public torch::CustomClassHolder {
 public:
  Island(IslandFunction function, const std::vector<at::Tensor>& inputs, std::optional<IslandNotes> expected)
      : function_(std::move(function)),
        device_(inputs.empty() ? c10::Device(c10::kCPU) : inputs[0].device()),
        surroundings_(device_.type()),
        expected_(std::move(expected)) {
    notes_.function = function_.number;
    for (const at::Tensor& input : inputs) {
      takes_gradient_.push_back(surroundings_.grad() && input.requires_grad() && may_require_grad(input));
      const bool is_leaf = input.requires_grad() && input.is_leaf();
      own_leaves_.push_back(is_leaf
                                ? trace::WeakTensor(input.getIntrusivePtr())
                                : trace::WeakTensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()));
    }
  }

  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& inputs, const IslandNumbers& numbers);
  /// @param of    The result that each gradient is of.
  /// @param keep  It may come again.
  std::vector<at::Tensor> backward(const std::vector<at::Tensor>& gradients, const std::vector<std::int64_t>& of,
                                   bool keep);
  /// The results as the step gets them, a node of autograd behind them.
  std::vector<at::Tensor> connect(std::vector<at::Tensor> results, const std::vector<at::Tensor>& inputs);

  [[nodiscard]] const IslandNotes& notes() const noexcept { return expected_ ? *expected_ : notes_; }
  /// At the end of a run that was observed. @throws UsageError  It is no example for a replay.
  void check_run() const {
    if (expected_) return;
    check_own_gradients();
    check_copies();
  }
  /// Those of the step that is recorded, as they are now.
  void know_leaves(const std::vector<trace::WeakTensor>& leaves);
  [[nodiscard]] const IslandFunction& function() const noexcept { return function_; }
  /// For each of its gradients whether there is one.
  [[nodiscard]] std::vector<bool> gradients_defined() const {
    std::vector<bool> defined;
    for (const auto& gradient : notes().gradients) defined.push_back(gradient.has_value());
    return defined;
  }

 private:
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs, const IslandNumbers& numbers);
  void forget() {
    results_.clear();
    leaves_.clear();
    if (expected_) given_.clear();
  }
  struct Use {
    autograd::Edge* edge;
    std::uint64_t at;  // of the node that has the edge
    at::Tensor tensor;
    std::size_t which = 0;  // as IslandNotes::uses
  };
  void find_uses(const std::vector<at::Tensor>& given, std::uint64_t began);
  void number_uses(std::vector<Use>& uses, const std::vector<at::Tensor>& given);
  void check_results(const std::vector<at::Tensor>& results) const;
  struct Gradient {
    const void* tensor = nullptr;
    std::int64_t writes = 0;
    friend bool operator==(const Gradient&, const Gradient&) = default;
  };
  [[nodiscard]] std::vector<Gradient> gradients_now() const;
  void check_own_gradients() const;
  std::vector<at::Tensor> handed_out(const std::vector<at::Tensor>& inputs);
  void check_copies() const;
  [[noreturn]] void refuse_other_gradients() const;

  IslandFunction function_;
  std::vector<bool> takes_gradient_;  // for each input
  c10::Device device_;
  Surroundings surroundings_;
  std::optional<IslandNotes> expected_;  // of the run before: in a recording, and in replays
  IslandNotes notes_;                    // of this run, where it is observed
  // From forward to backward of a run:
  std::vector<at::Tensor> leaves_;
  std::vector<at::Tensor> results_;
  std::vector<at::Tensor> given_;  // as the function has them
  struct Copy {
    at::Tensor argument, copy;
    std::array<std::int64_t, 2> versions;
  };
  std::vector<Copy> copies_;                   // of arguments that it returned, where the run is observed
  std::vector<trace::WeakTensor> own_leaves_;  // for each input; expired: it is none
  struct StepLeaf {
    trace::WeakTensor leaf;
    bool has_gradient;  // in the recording, where the function is called
  };
  std::vector<StepLeaf> step_leaves_;  // whose gradients the graph uses
};

namespace {

[[noreturn]] void refuse(const IslandFunction& function, const std::string& what, std::string fix) {
  throw UsageError({.what = fmt::format("{}, which stays eager, {}", function.name, what), .fix = std::move(fix)});
}

class IslandNode final : public torch_abi::OwnNode {
 public:
  explicit IslandNode(c10::intrusive_ptr<Island> island) : island_(std::move(island)) {}
  ~IslandNode() override { let_go(); }

  autograd::variable_list apply(autograd::variable_list&& gradients) override {
    if (island_ == nullptr) {
      throw UsageError({.what = "backward() was called a second time through a part that stays eager",
                        .fix = "call it with retain_graph=True before"});
    }
    if (at::GradMode::is_enabled()) {
      refuse(island_->function(), "is differentiated twice: backward() was called with create_graph=True",
             "leave create_graph out, or the whole step eager");
    }
    std::vector<at::Tensor> given;
    std::vector<std::int64_t> of;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) continue;
      given.push_back(gradients[i]);
      of.push_back(static_cast<std::int64_t>(i));
    }
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow(kBackward, "")
                               .typed<std::vector<at::Tensor>(std::vector<at::Tensor>, std::vector<std::int64_t>, bool,
                                                              std::int64_t, const c10::intrusive_ptr<Island>&)>();
    std::vector<at::Tensor> made;
    {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      made = op.call(given, of, autograd::get_current_graph_task_keep_graph(), island_->function().number, island_);
    }
    autograd::variable_list all;
    std::size_t next = 0;
    for (const bool defined : island_->gradients_defined()) {
      all.push_back(defined ? made.at(next++) : at::Tensor());
    }
    return all;
  }
  void release_variables() override { island_.reset(); }
  std::string name() const override { return "PianolaIslandBackward"; }

 private:
  void let_go() noexcept override { island_.reset(); }
  c10::intrusive_ptr<Island> island_;
};

// island(inputs, function, number0, ..., island)
void forward_kernel(const c10::OperatorHandle& /*op*/, torch::jit::Stack* stack) {
  const std::vector<c10::IValue> arguments = torch::jit::pop(*stack, kMostIslandNumbers + 3);
  IslandNumbers numbers;
  for (std::size_t i = 0; i < kMostIslandNumbers; ++i) {
    if (!arguments[2 + i].isNone()) numbers.push_back(arguments[2 + i]);
  }
  stack->emplace_back(arguments.back().toCustomClass<Island>()->forward(arguments[0].toTensorVector(), numbers));
}

std::vector<at::Tensor> backward_kernel(std::vector<at::Tensor> gradients, std::vector<std::int64_t> of, bool keep,
                                        std::int64_t /*function*/, const c10::intrusive_ptr<Island>& island) {
  return island->backward(gradients, of, keep);
}

}  // namespace

std::vector<at::Tensor> Island::run(const std::vector<at::Tensor>& inputs, const IslandNumbers& numbers) {
  const Surroundings::Entered as_in_the_step(surroundings_);
  const Running now;
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
  const std::vector<Gradient> gradients = gradients_now();
  IslandResult result = function_.run(given_, numbers);
  if (gradients_now() != gradients) {
    refuse(function_, "makes or drops gradients that the graph uses",
           "call zero_grad() and backward() in the step itself");
  }
  results_ = std::move(result.tensors);
  if (!expected_) notes_.structure = std::move(result.structure);
  for (std::size_t i = 0; i < given_.size(); ++i) {
    const bool is_written = !given_[i].is_inference() && given_[i]._version() != versions[i];
    if (is_written)
      refuse(function_, fmt::format("writes its argument {} in place", i),
             "return the result instead; the step may copy it there");
    if (own_leaves_[i].expired() && given_[i].requires_grad() && !autograd::impl::hooks(given_[i]).empty()) {
      refuse(function_, fmt::format("sets a hook on its argument {}", i), "set it in the step, before the call");
    }
  }
  check_own_gradients();
  for (at::Tensor& one : results_) {
    if (one.is_leaf() && one.requires_grad()) one = one.view_as(one);  // an edge leads to it
  }
  find_uses(given_, began);
  return handed_out(inputs);
}

// Of the step's leaves, where they are known. What the graph makes anew behind the function is not to be added to here, either.
std::vector<Island::Gradient> Island::gradients_now() const {
  std::vector<Gradient> all;
  for (const StepLeaf& known : step_leaves_) {
    auto leaf = known.leaf.lock();
    const at::Tensor gradient = leaf ? at::Tensor(std::move(leaf)).grad() : at::Tensor();
    if (!gradient.defined()) {
      all.push_back({});
    } else {
      all.push_back({.tensor = gradient.unsafeGetTensorImpl(), .writes = known.has_gradient ? 0 : gradient._version()});
    }
  }
  return all;
}

void Island::know_leaves(const std::vector<trace::WeakTensor>& leaves) {
  for (const trace::WeakTensor& weak : leaves) {
    auto leaf = weak.lock();
    const bool has_gradient = leaf && at::Tensor(leaf).grad().defined();
    step_leaves_.push_back({.leaf = weak, .has_gradient = has_gradient});
  }
}

// A backward pass that began in the function, or at what it keeps, ends at its own tensors.
void Island::check_own_gradients() const {
  for (std::size_t i = 0; i < given_.size(); ++i) {
    if (!own_leaves_[i].expired() || !given_[i].is_leaf() || !given_[i].requires_grad() || !given_[i].grad().defined())
      continue;
    refuse(function_, fmt::format("sends its argument {} a gradient by itself, which would go no further", i),
           "return what backward() is called on, and call it in the step");
  }
}

// Without history; and not the memory of an argument, or of a parameter.
std::vector<at::Tensor> Island::handed_out(const std::vector<at::Tensor>& inputs) {
  const trace::QuietScope quiet;
  std::vector<at::Tensor> all;
  copies_.clear();
  for (std::size_t k = 0; k < results_.size(); ++k) {
    const at::Tensor result = results_[k].detach();
    for (std::size_t other = 0; other < k; ++other) {
      if (!result.is_alias_of(results_[other])) continue;
      refuse(function_, fmt::format("returns results {} and {} that share memory", other, k),
             "return a copy: result.clone()");
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
    refuse(function_, "returns an argument, which is written in place behind the call",
           "return a copy: argument.clone()");
  }
}

// Where autograd would send gradients: to inputs, and to parameters of the function's own.
void Island::find_uses(const std::vector<at::Tensor>& given, std::uint64_t began) {
  std::vector<Use> uses;
  std::unordered_set<const autograd::Node*> seen;
  std::vector<autograd::Node*> open;
  for (const at::Tensor& result : results_) {
    if (result.grad_fn() != nullptr) open.push_back(result.grad_fn().get());
  }
  while (!open.empty()) {
    autograd::Node* const node = open.back();
    open.pop_back();
    if (!seen.insert(node).second) continue;
    if (node->sequence_nr() < began) {
      throw UsageError({.what = fmt::format("{}, which stays eager, uses a tensor with history that it was not given",
                                            function_.name),
                        .fix = "pass it as an argument"});
    }
    for (autograd::Edge& edge : node->next_edges()) {
      if (!edge.is_valid()) continue;
      if (auto* const leaf = dynamic_cast<autograd::AccumulateGrad*>(edge.function.get())) {
        uses.push_back({.edge = &edge, .at = node->sequence_nr(), .tensor = leaf->variable});
      } else {
        open.push_back(edge.function.get());
      }
    }
  }
  number_uses(uses, given);
}

// Each gets a leaf of its own.
void Island::number_uses(std::vector<Use>& uses, const std::vector<at::Tensor>& given) {
  std::vector<at::Tensor> all = given;
  if (expected_) {
    for (const trace::WeakTensor& known : expected_->parameters) {
      auto held = known.lock();
      if (!held) refuse_other_gradients();
      all.emplace_back(std::move(held));
    }
  }
  for (Use& use : uses) {
    const auto known =
        std::find_if(all.begin(), all.end(), [&](const at::Tensor& one) { return one.is_same(use.tensor); });
    use.which = static_cast<std::size_t>(known - all.begin());
    if (known != all.end()) continue;
    if (expected_) refuse_other_gradients();
    all.push_back(use.tensor);
    notes_.parameters.emplace_back(use.tensor.getIntrusivePtr());
  }
  std::stable_sort(uses.begin(), uses.end(), [](const Use& one, const Use& other) {
    return one.which != other.which ? one.which < other.which : one.at > other.at;
  });
  std::vector<std::size_t> numbers;
  for (const Use& use : uses) {
    numbers.push_back(use.which);
    at::Tensor leaf = use.tensor.detach().requires_grad_();
    *use.edge = autograd::impl::gradient_edge(leaf);
    leaves_.push_back(std::move(leaf));
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
  throw UsageError(
      {.what = fmt::format("{}, which stays eager, returned ({}) in a replay, and ({}) when the step was captured; "
                           "what the step does before it has run",
                           function_.name, now, before),
       .fix = "let it return tensors of the same shapes and types in each call, padded if need be"});
}

std::vector<at::Tensor> Island::forward(const std::vector<at::Tensor>& inputs, const IslandNumbers& numbers) {
  if (expected_ && is_recorded(device_)) {
    const trace::QuietScope quiet;
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
    std::vector<at::Tensor> blank;
    for (const auto& sample : expected_->gradients) {
      if (sample) blank.push_back(blank_of(*sample));
    }
    return blank;
  }
  autograd::variable_list made;
  {
    const Surroundings::Entered as_in_the_step(surroundings_);
    const Running now;
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

void Island::refuse_other_gradients() const {
  throw UsageError(
      {.what =
           fmt::format("{}, which stays eager, gives other gradients in a replay than when the step was captured; what "
                       "the step does before it has run",
                       function_.name),
       .fix = "let it use the same tensors in the same places in each call, with no rows if need be"});
}

std::vector<at::Tensor> Island::connect(std::vector<at::Tensor> results, const std::vector<at::Tensor>& inputs) {
  const std::vector<IslandSample>& samples = notes().results;
  const bool any =
      std::any_of(samples.begin(), samples.end(), [](const IslandSample& one) { return one.requires_grad; });
  if (!any) return results;
  std::vector<at::Tensor> all = inputs;
  for (const trace::WeakTensor& parameter : notes().parameters) {
    auto held = parameter.lock();
    all.push_back(held ? at::Tensor(std::move(held)) : at::Tensor());
  }
  autograd::edge_list edges;
  for (const std::size_t use : notes().uses) {
    edges.push_back(all[use].defined() ? autograd::impl::gradient_edge(all[use]) : autograd::Edge());
  }
  const auto node = torch_abi::make_node<IslandNode>(c10::intrusive_ptr<Island>::reclaim_copy(this));
  node->set_next_edges(std::move(edges));
  for (std::size_t i = 0; i < results.size(); ++i) {
    const std::uint32_t number = node->add_input_metadata(results[i]);
    if (samples[i].requires_grad) autograd::impl::set_gradient_edge(results[i], {node, number});
  }
  return results;
}

TORCH_LIBRARY_FRAGMENT(pianola, library) {
  library.class_<Island>("Island");
  std::string numbers;
  for (std::size_t i = 0; i < kMostIslandNumbers; ++i) numbers += fmt::format("Scalar? number{}, ", i);
  numbers =
      "island(Tensor[] inputs, int function, " + numbers + "__torch__.torch.classes.pianola.Island island) -> Tensor[]";
  library.def(numbers.c_str());
  library.def(
      "island_backward(Tensor[] gradients, int[] of, bool keep, int function, __torch__.torch.classes.pianola.Island "
      "island) -> "
      "Tensor[]");
}
TORCH_LIBRARY_IMPL(pianola, CompositeExplicitAutograd, library) {
  library.impl("island", torch::CppFunction::makeFromBoxedFunction<&forward_kernel>());
  library.impl("island_backward", &backward_kernel);
}

Islands::Islands() = default;
Islands::Islands(std::vector<IslandNotes> expected, const std::vector<at::Tensor>& leaves)
    : expected_(std::move(expected)) {
  for (const at::Tensor& leaf : leaves) leaves_.emplace_back(leaf.getIntrusivePtr());
}
Islands::~Islands() = default;

Islands::Open::Open(Islands& islands) : outer_(std::exchange(open_islands, &islands)) {}
Islands::Open::~Open() { open_islands = outer_; }
Islands* Islands::current() noexcept { return open_islands; }
bool Islands::run_one() noexcept { return running != 0; }

std::vector<IslandNotes> Islands::notes() const {
  std::vector<IslandNotes> all;
  for (const auto& island : islands_) {
    island->check_run();
    all.push_back(island->notes());
  }
  return all;
}

void Islands::check_no_parameters() const {
  for (const auto& island : islands_) {
    if (island->notes().parameters.empty()) continue;
    throw UsageError(
        {.what = fmt::format("{}, which stays eager, uses parameters, and its backward pass is not part of the graphed "
                             "function",
                             island->function().name),
         .fix = "pass them as arguments, or graph the whole step, backward pass included"});
  }
}

c10::intrusive_ptr<Island> Islands::add(IslandFunction function, const std::vector<at::Tensor>& inputs) {
  std::optional<IslandNotes> expected;
  if (is_recording()) {
    const bool is_known = islands_.size() < expected_.size() && expected_[islands_.size()].function == function.number;
    if (!is_known) {
      throw CaptureError(
          {.what = fmt::format("{}, which stays eager, is called in the recording, and not in the run before",
                               function.name),
           .fix = "warm up at least once, and let each call of the step call the same parts"});
    }
    expected = expected_[islands_.size()];
  }
  islands_.push_back(c10::make_intrusive<Island>(std::move(function), inputs, std::move(expected)));
  islands_.back()->know_leaves(leaves_);
  return islands_.back();
}

IslandResult call_island(IslandFunction function, std::vector<at::Tensor> inputs, IslandNumbers numbers) {
  Islands* const islands = Islands::current();
  if (islands == nullptr) return function.run(inputs, numbers);
  // A capture has hooks of its own, and comes behind a run.
  if (!capture_is_open() && at::GradMode::is_enabled() && at::SavedTensorDefaultHooks::get_hooks()) {
    refuse(function, "is called under hooks on saved tensors, as checkpoint(use_reentrant=False) sets them",
           "call it outside of them, or checkpoint with use_reentrant=True");
  }
  for (at::Tensor& input : inputs) input = input.resolve_conj().resolve_neg();  // below autograd nobody would see it
  const c10::intrusive_ptr<Island> island = islands->add(std::move(function), inputs);
  if (numbers.size() > kMostIslandNumbers) {
    throw UsageError({.what = fmt::format("{}, which stays eager, is given {} numbers, more than {}",
                                          island->function().name, numbers.size(), kMostIslandNumbers),
                      .fix = "give it a tensor of them"});
  }
  numbers.resize(kMostIslandNumbers);
  static const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow(kForward, "");
  torch::jit::Stack stack = {inputs, island->function().number};
  for (c10::IValue& number : numbers) stack.push_back(std::move(number));
  stack.emplace_back(island);
  {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    op.callBoxed(stack);
  }
  std::vector<at::Tensor> results = stack.back().toTensorVector();
  return {.tensors = island->connect(std::move(results), inputs), .structure = island->notes().structure};
}

std::int64_t next_island_number() noexcept {
  static std::atomic<std::int64_t> last{0};
  return ++last;
}

bool is_island(const std::string& operation) noexcept { return operation == kForward || operation == kBackward; }

}  // namespace pianola::graph
