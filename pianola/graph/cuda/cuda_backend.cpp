#include <pianola/cuda/driver.hpp>
#include <pianola/cuda/error_codes.hpp>
#include <pianola/cuda/topology.hpp>
#include <pianola/graph/account/graph_memory.hpp>
#include <pianola/graph/account/pool_memory.hpp>
#include <pianola/graph/backend.hpp>
#include <pianola/graph/branch_plan.hpp>
#include <pianola/graph/cuda/blas_workspaces.hpp>
#include <pianola/graph/cuda/branches.hpp>
#include <pianola/graph/cuda/capture_recording.hpp>
#include <pianola/graph/cuda/captured_graph.hpp>
#include <pianola/graph/cuda/cuda_pool.hpp>
#include <pianola/graph/cuda/executable_share.hpp>
#include <pianola/graph/cuda/graph_dot.hpp>
#include <pianola/graph/cuda/graph_executable.hpp>
#include <pianola/graph/cuda/input_copies.hpp>
#include <pianola/graph/cuda/launcher.hpp>
#include <pianola/graph/cuda/leaf_streams.hpp>
#include <pianola/graph/cuda/numbered_replay.hpp>
#include <pianola/graph/cuda/planned_memory.hpp>
#include <pianola/graph/cuda/pool_returns.hpp>
#include <pianola/graph/cuda/recorded_ahead.hpp>
#include <pianola/graph/cuda/retained_memory.hpp>
#include <pianola/graph/cuda/stream_scope.hpp>
#include <pianola/graph/cuda/thread_streams.hpp>
#include <pianola/graph/open_capture.hpp>

#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/cuda/CUDAFunctions.h>

#include <exception>
#include <iosfwd>
#include <utility>

namespace pianola::graph {
namespace {

using c10::cuda::CUDAStream;

std::size_t traced_nodes(const OpTrace& trace) {
  std::size_t nodes = 0;
  for (const OpRecord& op : trace.ops()) nodes += op.nodes;
  return nodes;
}

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(c10::Device device)
      : executable_({.device = device,
                     .pool = pool_,
                     .graph = graph_,
                     .branches = branches_,
                     .numbers = numbers_,
                     .copies = copies_}),
        launcher_(device),
        device_(device) {
    prepare_to_end_on_this_thread(device.index());
  }
  ~CudaBackend() override { reset(); }

  std::vector<at::Generator> default_generators() const override {
    return {at::cuda::detail::getDefaultCUDAGenerator(device_.index())};
  }
  bool executes_while_recording() const noexcept override { return false; }

  void check_may_capture(const CaptureOptions& options) const override {
    bind_context();
    check_may_capture_on_cuda(device_, options);
  }
  std::unique_ptr<StreamScope> enter(const CaptureOptions& options) override;
  void begin(const CaptureOptions& options) override;
  std::vector<trace::OpObserver*> warmup_observers() override { return {&*leaf_streams_}; }
  std::vector<trace::OpObserver*> observers() override;
  TraceRecorderOptions recorder_options() override {
    return recording_->recorder_options(*graph_, branches_ != nullptr);
  }
  void keep_executable_apart() override { executable_.keep_apart(); }
  std::optional<std::string> end(const OpTrace* trace, const CaptureOptions& options) override;
  void plan_memory(memory::StepRun run) override { run_to_plan_by_ = std::move(run); }
  void record_ahead(memory::StepRun run) override { ahead_.ask_for(std::move(run)); }
  std::optional<memory::StepRun> end_ahead(const OpTrace& trace, const memory::StepRun& run,
                                           std::span<const ByteSpan> places) override;
  void choose(const OpTrace* trace, const SaveStorage& save) override;
  void take_over(Backend& earlier, const OpTrace& captured, const OpTrace& now) override {
    executable_.take_over(static_cast<CudaBackend&>(earlier).executable_, captured, now);
  }
  void keep_of(Backend& earlier) noexcept override {
    executable_.keep_of(static_cast<CudaBackend&>(earlier).executable_);
  }
  void abandon() noexcept override;
  std::optional<Diagnosis> offence(const OpTrace* trace) const override {
    return recording_ ? recording_->offence(trace) : std::nullopt;
  }
  std::optional<Diagnosis> explain(const c10::Error& error, const OpTrace* trace) const override {
    return recording_ ? recording_->explain(error, trace) : std::nullopt;
  }

  void copy_inputs(std::span<const at::Tensor> sources) override;
  void copy_inputs_now(std::span<const at::Tensor> sources) override {
    bind_context();
    launcher_.order_behind_replays(*pool_);
    copies_.copy_now(executable_.get(), sources);
  }
  void keep_inputs() override { copies_.disable_all(executable_.get()); }
  void instantiate() override { executable_.instantiate(); }
  void replay() override;
  void keep_numbers(std::function<bool(std::size_t operation)> wanted) override { wanted_numbers_ = std::move(wanted); }
  bool has_number(std::size_t operation, std::size_t argument) override;
  void set_number(std::size_t operation, std::size_t argument, const c10::IValue& value) override {
    numbers_->calls().set(operation, argument, value);
  }
  bool runs_unknown_kernels() override { return numbers_ ? numbers_->runs_unknown_kernels() : has_unknown_nodes_; }
  void replay_operations(std::size_t first, std::size_t last) override;
  std::optional<CalledOperation> failed() const noexcept override {
    if (!numbers_ || numbers_->failed() == 0) return std::nullopt;
    return CalledOperation{.number = numbers_->failed(), .info = &numbers_->calls().info(numbers_->failed())};
  }
  std::size_t last_called(std::size_t operation) const noexcept override {
    return numbers_ ? numbers_->calls().last_by_hand(operation) : 0;
  }
  void watch_replays(const std::vector<std::string>& groups, const std::string& collectives) override {
    launcher_.watch(groups, collectives);
  }
  void reset() noexcept override;

  GraphPoolRef pool() const override { return GraphPoolRef(pool_); }
  void describe(GraphInfo& info) const override;
  void account(GraphMemory& memory) const override;
  void write_dot(std::ostream& out, const OpTrace* trace) const override;
  const parallel::LaneChart* lanes() const noexcept override { return branches_ ? branches_->chart() : nullptr; }
  void* raw_graph() const noexcept override { return executable_.made_of(); }
  void* raw_executable() const noexcept override { return executable_.raw(); }

 private:
  [[nodiscard]] GraphTopology read_topology() const;
  void replay_shared();
  void plan_recording();
  void drop_recording() noexcept;
  void end_capture();
  [[nodiscard]] std::vector<CUgraphNode> append_advance();
  [[nodiscard]] std::size_t node_count() const;
  [[nodiscard]] std::string why_empty(const OpTrace* trace, bool may_be_empty) const;
  void finish_numbers(const OpTrace& trace, std::span<const CUgraphNode> advance);
  [[nodiscard]] bool is_in_pool(std::uintptr_t address) const {
    return PoolTurn(pool_->turns()).ledger().owns(address);
  }
  void leave_pool() noexcept;
  void give_numbers();
  void play(std::size_t first, std::size_t last) {
    numbers_->play(launcher_, *pool_, first, last, planned_ && planned_->shares_scratch());
  }

  // What a replay reads comes first: with the first members of the launcher it fits two cache lines.
  GraphExecutable executable_;
  std::shared_ptr<CudaPool> pool_;
  std::unique_ptr<NumberedReplay> numbers_;  // where any operation may be given others, or is an island
  Launcher launcher_;
  InputCopies copies_;

  c10::Device device_;
  memory::StepRun run_to_plan_by_;  // until the recording begins
  RecordedAhead ahead_;
  std::shared_ptr<PlannedMemory> planned_;
  std::unique_ptr<CapturedGraph> graph_;
  std::unique_ptr<Branches> branches_;  // where they were asked for
  RetainedMemory retained_;
  std::unique_ptr<CaptureRecording> recording_;
  std::function<bool(std::size_t)> wanted_numbers_;
  std::optional<PoolReturns::Pause> no_returns_;  // while recording
  std::optional<LeafStreams> leaf_streams_;       // from the first eager run on
  bool has_unknown_nodes_ = true;                 // that no operation is known to have added
};

std::unique_ptr<StreamScope> CudaBackend::enter(const CaptureOptions& options) {
  auto pool = std::static_pointer_cast<CudaPool>(pool_for(options, device_));
  const CUDAStream stream =
      options.stream ? CUDAStream(*options.stream) : thread_stream(StreamPurpose::capture, device_.index());
  auto scope = std::make_unique<CudaStreamScope>(stream, pool);
  pool_ = std::move(pool);
  leaf_streams_.emplace(stream, options.differentiates);
  for (const at::Tensor& leaf : ObservedBefore::leaves()) leaf_streams_->expect(leaf);
  executable_.begin();
  ahead_.forget();
  recording_.reset();  // of a capture that failed: what broke that explains nothing of this one
  return scope;
}

void CudaBackend::begin(const CaptureOptions& options) {
  const auto is_in_this_pool = [this](std::uintptr_t address) { return is_in_pool(address); };
  recording_ = std::make_unique<CaptureRecording>(*pool_, c10::cuda::getCurrentCUDAStream(device_.index()), options,
                                                  is_in_this_pool);
  if (wants_branches(options)) branches_ = std::make_unique<Branches>(options, *pool_, recording_->stream());
  graph_ = std::make_unique<CapturedGraph>();
  std::vector<at::Generator> generators = default_generators();
  generators.insert(generators.end(), options.generators.begin(), options.generators.end());
  if (options.trace) {
    std::function<bool(std::size_t)> wanted = wanted_numbers_;
    if (!ahead_.is_asked_for()) wanted_numbers_ = nullptr;  // else the recording that counts wants them, too
    numbers_ = std::make_unique<NumberedReplay>(device_, std::move(wanted), is_in_this_pool);
  }
  if (pool_->family() != nullptr) recording_->lend_workspaces(*pool_->family());
  PoolReturns::instance().make_room(device_.index());
  no_returns_.emplace();
  GeneratorClock::Drawable drawable = graph_->begin(pool_->id(), to_cuda(options.mode), generators);
  plan_recording();
  copies_.record(options.inputs, recording_->stream().stream(), [this] { return recording_->new_nodes(); });
  recording_->begin(
      *graph_, std::move(drawable), [this] { return graph_ ? graph_->drawn_states() : 0; }, options);
}

void CudaBackend::plan_recording() {
  const CUDAStream stream = recording_->stream();
  if (ahead_.is_asked_for()) {
    planned_ = ahead_.begin(stream, pool_->id());
  } else if (!run_to_plan_by_.blocks.empty()) {
    planned_ = PlannedMemory::begin(stream, pool_->id(), std::exchange(run_to_plan_by_, {}), pool_->room_for_plan());
  }
}

std::optional<memory::StepRun> CudaBackend::end_ahead(const OpTrace& trace, const memory::StepRun& run,
                                                      std::span<const ByteSpan> places) {
  (void)recording_->new_nodes();
  if (branches_) branches_->stop_recording();
  end_capture();
  std::optional<memory::StepRun> on_lanes;
  try {
    if (branches_ && planned_) {
      on_lanes = ahead_.keep_lanes_apart(*branches_,
                                         {.graph = graph_->nodes(),
                                          .trace = &trace,
                                          .generators = graph_->words(),
                                          .advance = {},
                                          .copies = &copies_,
                                          .allocated = recording_->allocations().allocated_since(0),
                                          .instantiate = false},
                                         recording_->stream(), run, places);
    }
  } catch (const std::exception&) {  // the recording that counts comes by it again, and tells
  }
  drop_recording();
  recording_.reset();
  return on_lanes;
}

std::vector<trace::OpObserver*> CudaBackend::observers() {
  std::vector<trace::OpObserver*> all = {&*leaf_streams_};
  recording_->add_observers(all);
  if (planned_) all.push_back(planned_.get());
  if (numbers_) all.push_back(&numbers_->calls());
  if (branches_) {
    const auto more = branches_->observers(recording_->allocations(), planned_ != nullptr);
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

std::optional<std::string> CudaBackend::end(const OpTrace* trace, const CaptureOptions& options) {
  retained_.pin(recording_->take_host_copies());
  const std::vector<CUgraphNode> advance = append_advance();
  if (branches_) branches_->stop_recording();
  end_capture();
  if (planned_) planned_->settle();
  no_returns_.reset();
  if (trace != nullptr) ahead_.check_nothing_carried(*trace, recording_->allocations().allocated_since(0));
  std::string warning = why_empty(trace, options.allow_empty);
  executable_.enter_pool();

  std::vector<ByteSpan> allocated;
  if (branches_) allocated = recording_->allocations().allocated_since(0);
  if (trace != nullptr) launcher_.entry().enter(pool_->turns(), *trace, recording_->allocations().take());
  has_unknown_nodes_ =
      trace == nullptr || node_count() > copies_.nodes().size() + advance.size() + traced_nodes(*trace);
  if (numbers_) finish_numbers(*trace, advance);
  if (options.instantiate && branches_) {
    executable_.instantiate_own();  // the lanes are tried against it
  } else if (options.instantiate) {
    executable_.instantiate();
  }
  if (branches_) {
    branches_->rebuild({.graph = graph_->nodes(),
                        .trace = trace,
                        .generators = graph_->words(),
                        .advance = advance,
                        .copies = &copies_,
                        .allocated = std::move(allocated),
                        .instantiate = options.instantiate});
  }
  retained_.keep(recording_->take_inputs());
  recording_.reset();
  leaf_streams_.reset();
  return warning.empty() ? std::nullopt : std::optional(std::move(warning));
}

// The last nodes, which move the generators on.
std::vector<CUgraphNode> CudaBackend::append_advance() {
  (void)recording_->new_nodes();
  launcher_.draw_from(recording_->append_advance(*graph_), recording_->drawable());
  const auto last = recording_->new_nodes();
  return {last.begin(), last.end()};
}

std::size_t CudaBackend::node_count() const {
  std::size_t nodes = 0;
  check(Driver::get().graph_get_nodes(graph_->nodes(), nullptr, &nodes), "cuGraphGetNodes");
  return nodes;
}

// Empty where the graph has nodes. @throws CaptureError  It has none, and has to.
std::string CudaBackend::why_empty(const OpTrace* trace, bool may_be_empty) const {
  if (node_count() != copies_.nodes().size()) return {};
  const Diagnosis why = explain_empty(trace, device_.str());
  if (!may_be_empty) throw CaptureError(why);
  return why.what;
}

void CudaBackend::finish_numbers(const OpTrace& trace, std::span<const CUgraphNode> advance) {
  const auto made = [this](ExecutableMemory more) { executable_.add_memory(more); };
  if (!numbers_->finish(graph_->nodes(), trace, copies_.nodes(), advance, made)) return numbers_.reset();
  if (!numbers_->is_in_pieces()) return;
  branches_.reset();
  if (planned_) planned_->keep_whole(launcher_.entry().allocated(pool_->turns()));
}

void CudaBackend::choose(const OpTrace* trace, const SaveStorage& save) {
  if (!branches_) return;
  const bool takes_lanes = branches_->choose(
      {.launcher = launcher_, .serial = executable_.own(), .trace = trace, .kept = retained_.storages(), .save = save});
  if (takes_lanes) executable_.take_lanes();
  executable_.share();
}

// Which lanes may run beside each other was judged by where their tensors lie.
bool CudaBackend::has_number(std::size_t operation, std::size_t argument) {
  if (!numbers_ || !numbers_->calls().has(operation, argument)) return false;
  if (executable_.rewired() == nullptr || !numbers_->calls().is_on_device(operation, argument)) return true;
  if (!branches_->info().automatic) return false;
  if (pool_->is_asleep()) pool_->check_ready();  // and makes no executable
  copies_ = branches_->give_up("the step is given other tensors of the device from call to call");
  numbers_->forget_rewired();
  instantiate();
  return true;
}

void CudaBackend::end_capture() {
  if (planned_) planned_->end();
  try {
    graph_->finish();
  } catch (const c10::AcceleratorError& error) {
    // Runtime and driver give capture errors the same numbers.
    throw CaptureError(explain_end(static_cast<CUresult>(error.get_error_code()), recording_->watch()));
  }
}

void CudaBackend::leave_pool() noexcept {
  if (pool_ == nullptr) return;
  executable_.leave_pool();
  launcher_.entry().leave(pool_->turns());
}

void CudaBackend::abandon() noexcept {
  drop_recording();
  ahead_.forget();
  wanted_numbers_ = nullptr;
  leaf_streams_.reset();
  pool_.reset();  // the stream scope still holds it
}

void CudaBackend::drop_recording() noexcept {
  leave_pool();
  if (planned_) planned_->end();
  planned_.reset();
  run_to_plan_by_ = {};
  launcher_.stop();
  copies_ = {};
  executable_.drop();
  numbers_.reset();
  if (recording_ != nullptr) recording_->drop_host_copies();
  retained_.unpin();
  if (graph_ != nullptr && recording_ != nullptr) recording_->note_break();
  branches_.reset();
  if (recording_ != nullptr && !ahead_.bytes().empty()) {
    BlasWorkspaces::forget(recording_->stream().stream(), ahead_.bytes());
  }
  if (graph_ != nullptr) {
    if (recording_ != nullptr) graph_->abandon(recording_->stream());
    graph_.reset();
  }
  if (pool_ != nullptr) pool_->drop_unused_regions();
  no_returns_.reset();
  if (recording_ != nullptr) recording_->stop();
  retained_ = {};
}

void CudaBackend::copy_inputs(std::span<const at::Tensor> sources) {
  bind_context();
  give_numbers();
  if (numbers_ && numbers_->is_in_pieces()) {
    launcher_.order_behind_replays(*pool_);
    return copies_.copy_now(executable_.get(), sources);
  }
  copies_.set_sources(executable_.get(), sources, [this] { launcher_.order_behind_replays(*pool_); });
}

void CudaBackend::replay() {
  bind_context();
  if (executable_.get() == nullptr) [[unlikely]]
    return replay_shared();
  give_numbers();
  if (numbers_ && numbers_->is_in_pieces()) return play(1, Segments::kEnd);
  launcher_.launch(*pool_, &executable_.own(), {});
}

void CudaBackend::replay_shared() {
  if (numbers_) numbers_->begin_call();
  executable_.launch_shared(launcher_);
}

void CudaBackend::replay_operations(std::size_t first, std::size_t last) {
  bind_context();
  give_numbers();
  play(first, last);
}

void CudaBackend::give_numbers() {
  if (!numbers_) return;
  numbers_->begin_call();
  if (!numbers_->are_given()) [[unlikely]]
    numbers_->give(executable_.get(), executable_.rewired());
}

void CudaBackend::reset() noexcept {
  leave_pool();
  launcher_.stop();
  executable_.drop();
  copies_ = {};
  numbers_.reset();
  branches_.reset();
  executable_.drop_earlier_graph();
  graph_.reset();
  retained_.let_go_behind(launcher_.streams());
  if (planned_) {
    for (const CUDAStream& stream : launcher_.streams()) planned_->record_stream(stream);
  }
  planned_.reset();
  launcher_.forget_streams();
  pool_.reset();
  recording_.reset();
}

GraphTopology CudaBackend::read_topology() const {
  const auto alone = executable_.nodes_alone();
  return GraphTopology::read(executable_.made_of());
}

void CudaBackend::describe(GraphInfo& info) const {
  const GraphTopology topology = read_topology();
  info.backend = "cuda";
  info.nodes = topology.nodes().size();
  info.edges = topology.edges().size();
  info.types = topology.count_by_type();
  info.kernels = info.types.count("kernel") != 0 ? info.types.at("kernel") : 0;
  info.pool_bytes = pool_->bytes();
  info.planned_bytes = planned_ ? planned_->bytes() : 0;
  info.planned_bound_bytes = planned_ ? planned_->bound() : 0;
  const ExecutableShare::Counted executable = executable_.counted();
  info.executable_bytes = executable.memory.device;
  info.shares_executable = executable.is_shared;
  info.retained_bytes = retained_.bytes();
  info.draws_random_numbers = launcher_.draws_random_numbers();
  if (branches_) info.branches = branches_->info();
}

void CudaBackend::account(GraphMemory& memory) const {
  memory.pool = pool_->memory();
  memory.planned = planned_ ? planned_->bytes() : 0;
  const ExecutableShare::Counted executable = executable_.counted();
  memory.executable = executable.memory;
  memory.shares_executable = executable.is_shared;
  memory.retained = retained_.bytes();
  if (branches_) {
    memory.lane_workspaces = branches_->info().workspace_bytes;
    memory.kept_for_lanes = branches_->info().held_bytes;
  }
  launcher_.entry().account(pool_->turns(), memory);
}

void CudaBackend::write_dot(std::ostream& out, const OpTrace* trace) const {
  const auto alone = executable_.nodes_alone();
  write_graph_dot(out, graph_->nodes(), executable_.rewired(), trace);
}

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(c10::Device device) { return std::make_unique<CudaBackend>(device); }

}  // namespace pianola::graph
