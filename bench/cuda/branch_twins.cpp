#include "cuda/branch_twins.hpp"

#include "cuda/device.hpp"
#include "cuda/products.hpp"
#include "models/mlp.hpp"

#include <ATen/Context.h>
#include <c10/util/env.h>

#include <fmt/format.h>

namespace pianola::bench::cuda {
namespace {

constexpr int kCheckedSteps = 10;

constexpr const char* kTorch = "torch.cuda.graph";
constexpr const char* kSerial = "serial";

// While it lives, torch takes deterministic algorithms, if wanted. It does so only under this setting of cuBLAS, which is
// what torch takes on Hopper anyway.
class Deterministic {
 public:
  explicit Deterministic(bool wanted) {
    if (!wanted) return;
    c10::utils::set_env("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/false);
    context().setDeterministicAlgorithms(true, /*warn_only=*/false);
    context().setDeterministicFillUninitializedMemory(false);  // kernels that only help to find bugs
  }
  Deterministic(const Deterministic&) = delete;
  Deterministic& operator=(const Deterministic&) = delete;
  ~Deterministic() {
    context().setDeterministicAlgorithms(algorithms_, warn_only_);
    context().setDeterministicFillUninitializedMemory(fill_);
  }

 private:
  static at::Context& context() { return at::globalContext(); }

  bool algorithms_ = context().deterministicAlgorithms();
  bool warn_only_ = context().deterministicAlgorithmsWarnOnly();
  bool fill_ = context().deterministicFillUninitializedMemory();
};

void check_twin(const char* what, const std::function<void()>& replay, const WholeStep& step,
                const std::vector<at::Tensor>& expected) {
  check_equal(what, seeded_steps(replay, step), expected);
}

std::vector<at::Tensor> eager_steps(const BranchWorkload& workload) {
  WholeStep eager = workload.make();
  return seeded_steps([&] { eager.run(); }, eager);
}

}  // namespace

std::vector<at::Tensor> seeded_steps(const std::function<void()>& run, const WholeStep& step) {
  at::Generator generator = at::globalContext().defaultGenerator(kDevice);
  generator.set_current_seed(7);
  std::vector<at::Tensor> seen;
  for (int i = 0; i < kCheckedSteps; ++i) {
    run();
    seen.push_back(step.output().clone());
  }
  for (const at::Tensor& tensor : step.state()) seen.push_back(tensor.detach().clone());
  return seen;
}

std::vector<std::string> branch_notes(const std::optional<BranchInfo>& branches) {
  if (!branches) return {"the capture says nothing about branches"};
  const BranchInfo& found = *branches;
  const std::string outcome = found.rebuilt ? fmt::format("rebuilt on {} lanes", found.lanes)
                                            : fmt::format("left as captured, because {}", found.reason);
  std::vector<std::string> notes = {fmt::format(
      "{}: {} nodes, {} of them critical, in {} units; {} edges instead of {}; {} pairs proved ordered", outcome,
      found.nodes, found.critical_nodes, found.units, found.edges_after, found.edges_before, found.proved_pairs)};
  if (!found.untimed.empty()) notes.push_back("taken without timing it: " + found.untimed);
  notes.insert(notes.end(), found.warnings.begin(), found.warnings.end());
  return notes;
}

BranchTwins::BranchTwins(const BranchWorkload& workload)
    : workload_(workload),
      theirs_(workload.make()),
      ours_(workload.make()),
      branched_(workload.make()),
      serial_(kDevice),
      branches_(kDevice) {
  const Deterministic deterministic(workload.deterministic);
  const Products products(workload.tf32);
  const std::vector<at::Tensor> expected = eager_steps(workload);  // first: torch's capture needs libraries started
  torch_graph_ = torch_capture([this] { theirs_.run(); });
  serial_.capture([this] { ours_.run(); });
  branches_.capture([this] { branched_.run(); }, {.branches = kBranches});
  check_twin(
      kTorch, [this] { torch_graph_->replay(); }, theirs_, expected);
  check_twin(
      kSerial, [this] { serial_.replay(); }, ours_, expected);
  check_twin(
      kInBranches, [this] { branches_.replay(); }, branched_, expected);
}

Case BranchTwins::compare(const char* measure, const Timer& timer, const Plan& plan) {
  const Contender contenders[] = {{kTorch, [this] { torch_graph_->replay(); }},
                                  {kSerial, [this] { serial_.replay(); }},
                                  {kInBranches, [this] { branches_.replay(); }}};
  return {.name = workload_.name + (workload_.deterministic ? ", deterministic algorithms" : ""),
          .measure = measure,
          .unit = "us",
          .baseline = kSerial,
          .iterations = plan.iterations,
          .series = interleave(timer, contenders, plan)};
}

Case BranchTwins::device_time(const Settings& settings) {
  Case result = compare("device time per replay, back to back", event_timer(), settings.plan(workload_.iterations));
  if (workload_.limit > 0) result.requirements = {at_most_ratio(result, kInBranches, workload_.limit)};
  result.notes = branch_notes(branches_.info().branches);
  return result;
}

Case BranchTwins::host_time(const Settings& settings) {
  Case result = compare("host time per launch", host_timer(synchronize, 20), settings.plan(40));
  result.requirements = {within(result, kInBranches, 3, 0)};
  return result;
}

}  // namespace pianola::bench::cuda
