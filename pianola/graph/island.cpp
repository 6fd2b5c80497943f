#include <pianola/graph/island.hpp>

#include <pianola/core/error.hpp>
#include <pianola/graph/island_call.hpp>
#include <pianola/graph/open_capture.hpp>
#include <pianola/graph/read_check.hpp>
#include <pianola/trace/op_stream.hpp>

#include <ATen/SavedTensorHooks.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/stack.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <fmt/format.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>

namespace pianola::graph {
namespace {

constexpr const char* kForward = "pianola::island";

}  // namespace

// What is open on a thread that runs a step. Threads of autograd's find that of the step whose backward pass they run.
struct OpenHere {
  Islands* islands = nullptr;
  int running = 0;  // functions of islands
  const CaptureStage* stage = &capture_stage();
};

namespace {

// Of all threads that have islands open.
class OpenByThread {
 public:
  static OpenByThread& instance() {
    static OpenByThread& all = *new OpenByThread;  // never destroyed: a thread of autograd's may look later
    return all;
  }
  /// Whether this thread's was not there.
  [[nodiscard]] bool add(OpenHere& here) {
    const std::lock_guard lock(mutex_);
    return all_.try_emplace(std::this_thread::get_id(), &here).second;
  }
  void remove() {
    const std::lock_guard lock(mutex_);
    all_.erase(std::this_thread::get_id());
  }
  [[nodiscard]] OpenHere* find(std::thread::id thread) {
    const std::lock_guard lock(mutex_);
    const auto found = all_.find(thread);
    return found == all_.end() ? nullptr : found->second;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::thread::id, OpenHere*> all_;
};

OpenHere& own() {
  thread_local OpenHere here;
  return here;
}

// Of the step that this thread works for.
OpenHere& open_here() {
  const std::thread::id thread = trace::OpStream::thread_of_step();
  if (thread == std::this_thread::get_id()) return own();
  OpenHere* const found = OpenByThread::instance().find(thread);
  return found == nullptr ? own() : *found;
}

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

Islands::Open::Open(Islands& islands)
    : outer_(std::exchange(own().islands, &islands)), is_outermost_(OpenByThread::instance().add(own())) {}
Islands::Open::~Open() {
  own().islands = outer_;
  if (is_outermost_) OpenByThread::instance().remove();
}
Islands* Islands::current() noexcept { return open_here().islands; }
RunningIsland::RunningIsland() : step_(open_here()), outer_(std::exchange(step_.islands, nullptr)) { ++step_.running; }
RunningIsland::~RunningIsland() {
  --step_.running;
  step_.islands = outer_;
}
bool Islands::is_running() noexcept { return open_here().running != 0; }
bool Islands::step_is_recorded() noexcept { return *open_here().stage == CaptureStage::recording; }

std::vector<IslandNotes> Islands::notes() const {
  std::vector<IslandNotes> all;
  for (const auto& island : islands_) {
    std::string unfit;
    try {
      island->check_run();
    } catch (const UsageError& error) {
      if (!island->function().is_found) throw;
      unfit = error.what();
    } catch (const UnfitIsland& error) {
      unfit = error.what();
    }
    all.push_back(island->notes());
    if (!unfit.empty()) all.back().unfit = std::move(unfit);
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
  if (step_is_recorded()) {
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
    refuse_island(function, "is called under hooks on saved tensors, as checkpoint(use_reentrant=False) sets them",
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
  try {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    op.callBoxed(stack);
  } catch (const UnfitIsland& unfit) {
    island->note_unfit(unfit.what());
    return {.is_unfit = true};
  }
  std::vector<at::Tensor> results = stack.back().toTensorVector();
  return {.tensors = island->connect(std::move(results), inputs), .structure = island->notes().structure};
}

std::int64_t next_island_number() noexcept {
  static std::atomic<std::int64_t> last{0};
  return ++last;
}

bool is_island(const std::string& operation) noexcept {
  return operation == kForward || operation == kIslandBackward || operation == kReadCheck;
}

bool is_found_island(const std::string& operation, c10::ArrayRef<c10::IValue> inputs) {
  if (operation != kForward && operation != kIslandBackward) return false;
  return inputs.back().toCustomClass<Island>()->function().is_found;
}

std::vector<at::Tensor> own_leaves_of_island(const std::string& operation, c10::ArrayRef<c10::IValue> inputs) {
  std::vector<at::Tensor> leaves;
  if (operation != kForward) return leaves;
  for (const trace::WeakTensor& parameter : inputs.back().toCustomClass<Island>()->notes().parameters) {
    if (auto held = parameter.lock()) leaves.emplace_back(std::move(held));
  }
  return leaves;
}

}  // namespace pianola::graph
