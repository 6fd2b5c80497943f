#include <pianola/graph/account/graph_memory.hpp>
#include <pianola/graph/backend.hpp>
#include <pianola/graph/branch_plan.hpp>
#include <pianola/graph/copy_into.hpp>
#include <pianola/graph/foreign_draws.hpp>
#include <pianola/graph/input_keeper.hpp>
#include <pianola/graph/pool_state.hpp>
#include <pianola/graph/tape/tape.hpp>
#include <pianola/graph/tape/tape_watch.hpp>

#include <ATen/CPUGeneratorImpl.h>

#include <fmt/format.h>

#include <ostream>
#include <utility>
#include <vector>

namespace pianola::graph {
namespace {

class TapeBackend final : public Backend {
 public:
  ~TapeBackend() override { reset(); }

  std::vector<at::Generator> default_generators() const override { return {at::detail::getDefaultCPUGenerator()}; }
  bool executes_while_recording() const noexcept override { return true; }

  void check_may_capture(const CaptureOptions& options) const override {
    if (!options.pool.empty() && !options.pool.state()->device().is_cpu()) {
      throw UsageError(
          {.what = fmt::format("the pool is on {}, the graph on cpu", options.pool.state()->device().str())});
    }
    if (options.stream) throw UsageError({.what = "a stream was given, but the tape on cpu has none"});
  }

  std::unique_ptr<StreamScope> enter(const CaptureOptions& /*options*/) override { return nullptr; }

  void begin(const CaptureOptions& options) override {
    pool_ = std::static_pointer_cast<TapePool>(pool_for(options, c10::kCPU));
    std::vector<at::Generator> generators = default_generators();
    generators.insert(generators.end(), options.generators.begin(), options.generators.end());
    watch_.emplace(std::move(generators));
    recorder_.emplace();
    keeper_.emplace();
    inputs_ = options.inputs;
  }

  std::vector<trace::OpObserver*> observers() override { return {&*watch_, &*recorder_, &*keeper_}; }

  TraceRecorderOptions recorder_options() override {
    return {.random_position = [this] { return watch_->draws(); }};
  }

  std::optional<Diagnosis> offence(const OpTrace* trace) const override {
    return watch_ ? watch_->offence(trace) : std::nullopt;
  }

  std::optional<std::string> end(const OpTrace* trace, const CaptureOptions& options) override {
    tape_ = recorder_->take();
    drawn_from_ = watch_->drawn_from();
    kept_bytes_ = bytes_of(keeper_->take());  // the tape's own aliases keep the memory
    result_bytes_ = tape_.result_bytes();
    tape_.bind();
    const Diagnosis why_empty = {.what = "the step is empty: no operation that a replay could run was recorded",
                                 .fix = "check that the step runs its work on this thread, and on tensors of the cpu",
                                 .rule = "PG1201"};
    if (tape_.ops().empty() && !options.allow_empty) throw CaptureError(why_empty);
    live_.emplace(tape_);
    pool_->add(tape_, result_bytes_);
    if (options.branches > 1 && trace != nullptr) plan(*trace, options);  // with kAutoBranches nothing could be gained
    watch_.reset();
    recorder_.reset();
    keeper_.reset();
    return tape_.ops().empty() ? std::optional(why_empty.what) : std::nullopt;
  }

  void abandon() noexcept override {
    if (watch_) watch_->stop();
    recorder_.reset();
    keeper_.reset();
    live_.reset();
    if (pool_ != nullptr) pool_->remove(tape_);
    tape_ = {};
    drawn_from_.clear();
    inputs_.clear();
    branches_.reset();
    chart_.reset();
    pool_.reset();
  }

  void copy_inputs(std::span<const at::Tensor> sources) override {
    pool_->check_ready();
    copy_into(inputs_, sources);
  }
  void replay() override {
    run([this] { tape_.replay(); });
  }

  bool has_number(std::size_t operation, std::size_t argument) override {
    return tape_.has_argument(operation, argument);
  }
  void set_number(std::size_t operation, std::size_t argument, const c10::IValue& value) override {
    tape_.set_argument(operation, argument, value);
  }
  void replay_operations(std::size_t first, std::size_t last) override {
    run([&] { tape_.replay_calls(first, last); });
  }

  void repeat_recorded_call(bool repeat) override { tape_.repeat_recorded_call(repeat); }

  std::optional<CalledOperation> failed() const noexcept override {
    const TapeOp* const op = tape_.failed();
    return op == nullptr ? std::nullopt : std::optional(CalledOperation{.number = op->number, .info = op->info});
  }
  std::size_t last_called(std::size_t operation) const noexcept override { return operation; }

  void reset() noexcept override {
    if (pool_ != nullptr) pool_->remove(tape_);
    live_.reset();
    tape_ = {};
    drawn_from_.clear();
    inputs_.clear();
    branches_.reset();
    chart_.reset();
    pool_.reset();
  }

  GraphPoolRef pool() const override { return GraphPoolRef(pool_); }

  void describe(GraphInfo& info) const override {
    info.backend = "tape";
    info.nodes = tape_.ops().size();
    info.types = tape_.count_by_operator();
    info.edges = info.nodes == 0 ? 0 : info.nodes - 1;
    info.pool_bytes = pool_->bytes();
    info.retained_bytes = kept_bytes_;
    info.draws_random_numbers = !drawn_from_.empty();
    info.branches = branches_;
  }

  void account(GraphMemory& memory) const override {
    memory.pool = pool_->memory();
    memory.own = result_bytes_;
    memory.retained = kept_bytes_;
  }

  const parallel::LaneChart* lanes() const noexcept override { return chart_ ? &*chart_ : nullptr; }

  void write_dot(std::ostream& out, const OpTrace* /*trace*/) const override {
    out << "digraph tape {\n  rankdir=TB;\n  node [shape=box];\n";
    std::size_t index = 0;
    for (const TapeOp& op : tape_.ops()) {
      out << fmt::format("  n{} [label=\"{}\"];\n", index, op.info->name);
      if (index > 0) out << fmt::format("  n{} -> n{};\n", index - 1, index);
      ++index;
    }
    out << "}\n";
  }

 private:
  template <typename Replay>
  void run(const Replay& replay) {
    const PoolState::InUse in_use(*pool_);
    std::optional<ForeignDraws::Unseen> draws;
    if (!drawn_from_.empty()) draws.emplace(drawn_from_);
    replay();
  }

  // The plan that CUDA would follow, and its proof. A replay runs one operation after the other: at the sizes where
  // graphs help, handing an operation to another thread costs more than the operation.
  void plan(const OpTrace& trace, const CaptureOptions& options) {
    branches_ = requested_branches(options);
    parallel::StepUnits step = parallel::units_of(trace);
    std::uint32_t next = 0;  // a graph's nodes are numbered without gaps; views are none
    for (parallel::Unit& unit : step.units) unit.nodes = {next++};
    const auto plan = plan_branches(std::move(step), *branches_);
    if (!plan) return;
    chart_ = parallel::chart_of(*plan);
    branches_->edges_before = branches_->nodes == 0 ? 0 : branches_->nodes - 1;
    if (!prove_branches(*plan, branches_->nodes, plan->edges, *branches_)) return;
    branches_->reason = "the tape runs its operations one after the other; the plan was made and proved";
  }

  std::optional<BranchInfo> branches_;
  std::optional<parallel::LaneChart> chart_;
  std::shared_ptr<TapePool> pool_;
  std::optional<TapeWatch> watch_;
  std::optional<TapeRecorder> recorder_;
  std::optional<InputKeeper> keeper_;
  Tape tape_;
  std::optional<LiveTape> live_;
  std::vector<at::Tensor> inputs_;
  std::size_t kept_bytes_ = 0;
  std::size_t result_bytes_ = 0;
  std::vector<at::Generator> drawn_from_;
};

}  // namespace

std::unique_ptr<Backend> make_tape_backend() { return std::make_unique<TapeBackend>(); }

}  // namespace pianola::graph
