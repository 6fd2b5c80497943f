#include <pianola/distributed/gradient_reducer.hpp>

#include <pianola/core/error.hpp>
#include <pianola/distributed/same_tensors.hpp>
#include <pianola/torch_abi/autograd_node.hpp>

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace pianola::distributed {
namespace {

constexpr std::size_t kBroadcastBytes = std::size_t{250} << 20U;  // at once, as DistributedDataParallel does
constexpr const char* kConstructor = "the constructor of GradientReducer";

/// Called when a parameter has its gradient.
class OnGradient final : public torch::autograd::FunctionPostHook {
 public:
  explicit OnGradient(std::function<void()> call) : call_(std::move(call)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& /*inputs*/) override {
    call_();
    return outputs;
  }

 private:
  std::function<void()> call_;
};

struct AddedHook {
  torch_abi::NodeRef<> node;
  std::uintptr_t key;
};

void check_tensors(const char* kind, const std::vector<at::Tensor>& tensors, const at::Tensor& first) {
  std::unordered_set<const c10::TensorImpl*> seen;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    const auto refuse = [&](const std::string& what, const char* fix) {
      throw UsageError({.what = fmt::format("{} {} {}", kind, i, what), .where = kConstructor, .fix = fix});
    };
    if (!tensor.defined()) refuse("is undefined", "leave it out");
    if (!tensor.is_leaf()) refuse("was made by an operation", "pass leaves, as model->parameters() returns them");
    if (!seen.insert(tensor.unsafeGetTensorImpl()).second) refuse("is listed twice", "list each tensor once");
    if (tensor.device() != first.device()) {
      refuse(fmt::format("is on {}, the first parameter on {}", tensor.device().str(), first.device().str()),
             "move the model to one device before the reducer is made: one process per GPU");
    }
  }
}

void check_arguments(const std::vector<at::Tensor>& parameters, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                     const GradientReducerOptions& options) {
  if (!group) {
    throw UsageError({.what = "there is no process group",
                      .where = kConstructor,
                      .fix = "pass the one of process_group_from_environment(), or one of your own"});
  }
  if (options.bucket_bytes == 0 || options.first_bucket_bytes == 0) {
    throw UsageError({.what = fmt::format("bucket_bytes and first_bucket_bytes must be 1 or more, got {} and {}",
                                          options.bucket_bytes, options.first_bucket_bytes),
                      .where = kConstructor,
                      .fix = "leave them at their defaults of 25 and 1 MiB"});
  }
  if (!parameters.empty()) {
    check_tensors("parameter", parameters, parameters.front());
    check_tensors("buffer", options.buffers, parameters.front());
  }
  if (std::any_of(parameters.begin(), parameters.end(), [](const at::Tensor& one) { return one.requires_grad(); }))
    return;
  throw UsageError({.what = parameters.empty()
                                ? "there are no parameters"
                                : fmt::format("none of the {} parameters requires grad", parameters.size()),
                    .where = kConstructor,
                    .fix = "pass model->parameters() of a model that is to be trained"});
}

std::unique_ptr<c10d::Reducer> make_engine(const std::vector<at::Tensor>& reduced,
                                           c10::intrusive_ptr<c10d::ProcessGroup> group,
                                           const GradientReducerOptions& options) {
  const std::vector<bool> sparse(reduced.size(), false);
  // One bucket for each dtype. The engine makes those of the wanted size when it knows in which order gradients come.
  auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(
      reduced, {static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max())}, sparse));
  std::reverse(buckets.begin(), buckets.end());
  std::unordered_map<std::size_t, std::string> names;  // what TORCH_DISTRIBUTED_DEBUG prints
  for (std::size_t i = 0; i < reduced.size(); ++i) names.emplace(i, fmt::format("parameter {}", i));
  return std::make_unique<c10d::Reducer>(
      reduced, std::move(buckets), std::move(group), sparse, static_cast<std::int64_t>(options.bucket_bytes),
      /*find_unused_parameters=*/false, options.gradient_as_bucket_view, std::move(names),
      static_cast<std::int64_t>(options.first_bucket_bytes),
      /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false, std::vector<std::int64_t>());
}

}  // namespace

// Note [How the engine is driven]
// DistributedDataParallel counts iterations by prepare_for_forward(), and times some of them; which nobody does here. It groups
// gradients anew at the second forward pass; here that is done at the end of the first backward pass, which comes to the same groups,
// so that no later part of a step differs from the others and a capture may follow.
//
// The engine takes no notice of a backward pass that it does not expect, and notices a parameter without gradient one iteration later.
// So each parameter has a hook besides the engine's, which it runs after.
struct GradientReducer::Impl {
  Impl(std::vector<at::Tensor> parameters, c10::intrusive_ptr<c10d::ProcessGroup> wanted_group,
       GradientReducerOptions wanted)
      : group(std::move(wanted_group)), buffers(std::move(wanted.buffers)) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (!parameters[i].requires_grad()) continue;
      reduced.push_back(parameters[i]);
      indices.push_back(i);
    }
    arrived.resize(reduced.size());
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> all = std::move(parameters);
    all.insert(all.end(), buffers.begin(), buffers.end());
    c10d::broadcast_coalesced(group, all, kBroadcastBytes, 0);
    engine = make_engine(reduced, group, wanted);
    for (std::size_t i = 0; i < reduced.size(); ++i) watch(i);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    for (const AddedHook& hook : hooks) hook.node->del_post_hook(hook.key);
  }

  void watch(std::size_t index) {
    auto node = torch::autograd::impl::grad_accumulator(reduced[index]);
    const auto key = node->add_post_hook(std::make_unique<OnGradient>([this, index] { note_gradient(index); }));
    hooks.push_back({.node = std::move(node), .key = key});
  }

  void begin() {
    if (!at::GradMode::is_enabled()) return;
    require_whole_reduction();
    copy_buffers();
    if (accumulating != 0) return;
    std::fill(arrived.begin(), arrived.end(), false);
    missing = reduced.size();
    engine->prepare_for_backward({});
  }

  void copy_buffers() {
    if (buffers_are_due && !buffers.empty()) {
      const at::NoGradGuard no_grad;
      c10d::broadcast_coalesced(group, buffers, kBroadcastBytes, 0);
    }
    buffers_are_due = accumulating == 0;
  }

  void note_gradient(std::size_t index);
  void require_whole_reduction() const;

  const c10::intrusive_ptr<c10d::ProcessGroup> group;
  std::vector<at::Tensor> buffers;
  std::vector<at::Tensor> reduced;   // parameters that require grad,
  std::vector<std::size_t> indices;  // and which of all they are
  std::unique_ptr<c10d::Reducer> engine;
  std::vector<AddedHook> hooks;
  std::vector<bool> arrived;  // gradients since begin(); of `reduced`
  std::size_t missing = 0;    // those that have not; 0: no reduction is expected
  int accumulating = 0;       // NoSync that live
  bool buffers_are_due = true;
};

void GradientReducer::Impl::note_gradient(std::size_t index) {
  if (accumulating != 0) return;
  if (missing == 0) {
    throw UsageError(
        {.what = "a backward pass began without begin(): its gradients would be those of this rank alone",
         .where = fmt::format("gradient of parameter {}", indices[index]),
         .fix = "call begin() of the GradientReducer before each forward pass; where gradients shall add up first, "
                "hold a NoSync"});
  }
  if (arrived[index]) return;
  arrived[index] = true;
  if (--missing != 0 || !engine->should_rebuild_buckets()) return;
  // After the engine's own callback, which waits for the buckets.
  torch::autograd::Engine::get_default_engine().queue_callback([this] { engine->rebuild_buckets(); });
}

void GradientReducer::Impl::require_whole_reduction() const {
  if (missing == 0 || missing == reduced.size()) return;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < reduced.size() && names.size() < 8; ++i) {
    if (!arrived[i]) names.push_back(fmt::format("{} ([{}])", indices[i], fmt::join(reduced[i].sizes(), ", ")));
  }
  throw UsageError(
      {.what = fmt::format("{} of {} parameters got no gradient in the backward pass before, which was not reduced "
                           "therefore: {}{}",
                           missing, reduced.size(), fmt::join(names, ", "), names.size() < missing ? ", ..." : ""),
       .where = "begin() of GradientReducer",
       .fix = "let the loss depend on each parameter, or leave those out that it does not use. If the backward pass "
              "threw, mend that and make the GradientReducer anew"});
}

GradientReducer::GradientReducer(std::vector<at::Tensor> parameters, c10::intrusive_ptr<c10d::ProcessGroup> group,
                                 GradientReducerOptions options) {
  check_arguments(parameters, group, options);
  require_same_tensors(*group, "parameter", parameters, parameters.front().device());
  require_same_tensors(*group, "buffer", options.buffers, parameters.front().device());
  impl_ = std::make_unique<Impl>(std::move(parameters), std::move(group), std::move(options));
}

GradientReducer::GradientReducer(GradientReducer&&) noexcept = default;
GradientReducer& GradientReducer::operator=(GradientReducer&&) noexcept = default;
GradientReducer::~GradientReducer() = default;

void GradientReducer::begin() { impl_->begin(); }

NoSync::NoSync(GradientReducer& reducer) : reducer_(reducer.impl_.get()) {
  reducer_->require_whole_reduction();
  if (reducer_->missing != 0) {
    throw UsageError({.what = "NoSync was made after begin(), which has announced a backward pass that is reduced",
                      .where = "the constructor of NoSync",
                      .fix = "make it before begin(), and call begin() while it lives"});
  }
  ++reducer_->accumulating;
}

NoSync::~NoSync() { --reducer_->accumulating; }

}  // namespace pianola::distributed
