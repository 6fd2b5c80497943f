#include <pianola/graph/island.hpp>

#include <pianola/core/error.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/graph/island_call.hpp>
#include <pianola/graph/open_capture.hpp>

#include <ATen/SavedTensorHooks.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/stack.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <fmt/format.h>

#include <atomic>
#include <optional>
#include <string>
#include <utility>

namespace pianola::graph {
namespace {

constexpr const char* kForward = "pianola::island";

thread_local Islands* open_islands = nullptr;
thread_local int running = 0;

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

Islands::Open::Open(Islands& islands) : outer_(std::exchange(open_islands, &islands)) {}
Islands::Open::~Open() { open_islands = outer_; }
Islands* Islands::current() noexcept { return open_islands; }
RunningIsland::RunningIsland() : outer_(std::exchange(open_islands, nullptr)) { ++running; }
RunningIsland::~RunningIsland() {
  --running;
  open_islands = outer_;
}
bool Islands::is_running() noexcept { return running != 0; }

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

bool is_island(const std::string& operation) noexcept { return operation == kForward || operation == kIslandBackward; }

}  // namespace pianola::graph
