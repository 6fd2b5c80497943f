#include "cuda/iteration_twins.hpp"

#include "cuda/branch_twins.hpp"
#include "cuda/device.hpp"
#include "cuda/products.hpp"
#include "models/mlp.hpp"

namespace pianola::bench::cuda {
namespace {

constexpr int kCheckedIterations = 8;

constexpr const char* kBare = "cudaGraphLaunch";
constexpr const char* kStatic = "FullIteration, static inputs";
constexpr const char* kTensors = "FullIteration, tensors that it copies";
constexpr const char* kBranched = "FullIteration, static inputs, branches = 4";
constexpr const char* kTheirs = "at::cuda::CUDAGraph, optimizer outside";
constexpr const char* kEager = "eager C++";

}  // namespace

IterationTwins::Whole::Whole(const std::function<Iteration()>& make, int branches)
    : iteration(make()),
      inputs(kDevice),
      graphed([this](const std::vector<c10::IValue>& one) -> c10::IValue { return iteration.run(one); },
              {.warmup = 1, .branches = branches}) {
  inputs.load(iteration.microbatches());
}

IterationTwins::IterationTwins(const IterationWorkload& workload)
    : workload_(workload),
      eager_(workload.make()),
      bare_(workload.make()),
      theirs_(workload.make()),
      static_(workload.make, 0),
      tensors_(workload.make, 0),
      branched_(workload.make, kBranches),
      bare_graph_(kDevice) {
  const Products products(workload.tf32);
  Iteration begun = workload.make();  // torch's capture needs libraries started on this stream
  begun.run();
  bare_graph_.capture([this] { bare_.run(); });
  torch_graph_ = torch_capture([this] { theirs_.forward_backward(); });
  check();
}

void IterationTwins::check() {
  for (int i = 0; i < kCheckedIterations; ++i) {
    eager_.run();
    bare_graph_.replay();
    torch_graph_->replay();
    theirs_.update();
    (void)static_.graphed(static_.inputs);
    (void)tensors_.graphed(tensors_.iteration.microbatches());
    (void)branched_.graphed(branched_.inputs);
    const std::vector<at::Tensor> expected = eager_.state();
    check_equal(kBare, bare_.state(), expected);
    check_equal(kTheirs, theirs_.state(), expected);
    check_equal(kStatic, static_.iteration.state(), expected);
    check_equal(kTensors, tensors_.iteration.state(), expected);
    check_equal(kBranched, branched_.iteration.state(), expected);
  }
}

Case IterationTwins::compare(const char* measure, const Timer& timer, const Plan& plan) {
  const Products products(workload_.tf32);
  const Contender contenders[] = {
      {kBare, bare_launch(bare_graph_.raw_executable())},
      {kStatic, [this] { (void)static_.graphed(static_.inputs); }},
      {kTensors, [this] { (void)tensors_.graphed(tensors_.iteration.microbatches()); }},
      {kBranched, [this] { (void)branched_.graphed(branched_.inputs); }},
      {kTheirs,
       [this] {
         torch_graph_->replay();
         theirs_.update();
       }},
      {kEager, [this] { eager_.run(); }},
  };
  return {.name = workload_.name,
          .measure = measure,
          .unit = "us",
          .baseline = kBare,
          .iterations = plan.iterations,
          .series = interleave(timer, contenders, plan)};
}

Case IterationTwins::device_time(const Settings& settings) {
  Case result = compare("time per iteration, back to back", event_timer(), settings.plan(10));
  result.requirements = {at_most_ratio(result, kStatic, 1.01), at_least_speedup(result, kStatic, 1, kTheirs),
                         at_least_speedup(result, kBranched, workload_.branches_speedup, kTheirs)};
  const FullIterationInfo info = branched_.graphed.info();
  result.notes = branch_notes(info.signatures.front().branches);
  return result;
}

Case IterationTwins::host_time(const Settings& settings) {
  Case result = compare("host time of a call among others", middle_call_timer(synchronize, 10), settings.plan(10));
  result.requirements = {within(result, kStatic, 3, 0), at_least_speedup(result, kStatic, 10, kTheirs)};
  return result;
}

Case IterationTwins::first_call(const Settings& settings) {
  return compare("host time of the first call after a wait", host_timer(synchronize, 1), settings.plan(3));
}

}  // namespace pianola::bench::cuda
