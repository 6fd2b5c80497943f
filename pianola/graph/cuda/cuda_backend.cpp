#include <pianola/cuda/capture_info.hpp>
#include <pianola/cuda/executable.hpp>
#include <pianola/cuda/topology.hpp>
#include <pianola/graph/account/graph_memory.hpp>
#include <pianola/graph/backend.hpp>
#include <pianola/graph/branch_plan.hpp>
#include <pianola/graph/cuda/allocation_watch.hpp>
#include <pianola/graph/cuda/branches.hpp>
#include <pianola/graph/cuda/capture_watch.hpp>
#include <pianola/graph/cuda/captured_graph.hpp>
#include <pianola/graph/cuda/cuda_pool.hpp>
#include <pianola/graph/cuda/executable_account.hpp>
#include <pianola/graph/cuda/generator_clock.hpp>
#include <pianola/graph/cuda/generator_watch.hpp>
#include <pianola/graph/cuda/graph_dot.hpp>
#include <pianola/graph/cuda/host_copies.hpp>
#include <pianola/graph/cuda/input_copies.hpp>
#include <pianola/graph/cuda/leaf_streams.hpp>
#include <pianola/graph/cuda/numbered_calls.hpp>
#include <pianola/graph/cuda/other_threads.hpp>
#include <pianola/graph/cuda/planned_memory.hpp>
#include <pianola/graph/cuda/pool_returns.hpp>
#include <pianola/graph/cuda/segments.hpp>
#include <pianola/graph/cuda/stream_scope.hpp>
#include <pianola/graph/cuda/thread_streams.hpp>
#include <pianola/graph/cuda/trial_copies.hpp>
#include <pianola/graph/cuda/watched_replays.hpp>
#include <pianola/graph/foreign_draws.hpp>
#include <pianola/graph/input_keeper.hpp>
#include <pianola/graph/open_capture.hpp>
#include <pianola/trace/resized_storage.hpp>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <fmt/format.h>

#include <algorithm>
#include <iosfwd>
#include <unordered_set>
#include <utility>

namespace pianola::graph {
namespace {

using c10::cuda::CUDAStream;

// All that exists only while a capture is open.
struct Recording {
  Recording(const CudaPool& pool, CUDAStream on, const CaptureOptions& options) : stream(on), watch(on.stream()) {
    if (options.trace) allocations.emplace(pool.id());
    if (options.trace && options.mode == CaptureMode::global) other_threads.emplace(on.stream());
  }
  CUDAStream stream;
  std::optional<CudaPoolFamily::Recording> workspaces;
  CaptureWatch watch;
  std::optional<OtherThreads> other_threads;  // where they can do harm
  CaptureFrontier frontier;
  std::optional<AllocationWatch> allocations;
  std::optional<InputKeeper> keeper;
  std::optional<GeneratorWatch> generators;
  GeneratorClock::Drawable drawable;
  std::vector<ByteSpan> new_blocks;  // what the trace was told last
  std::size_t known_blocks = 0;
  std::optional<HostCopies> host_copies;  // where the step is known to make some
  bool broke = false;                     // what the stream said before the capture was abandoned
};

// Of a graph whose operations may be given other numbers.
struct Numbers {
  NumberedCalls calls;
  std::optional<Segments> segments;                    // after the capture
  std::uint64_t given_at = 0;                          // to the executable
  std::unordered_map<CUgraphNode, CUgraphNode> nodes;  // of the graph of the branches, where replays run it
  bool any_wanted = false;                             // by who has the graph: it may replay parts of it
};

// A stream that is not torch's own: torch names it by its handle. Whoever made it may destroy it.
bool may_end(CUDAStream stream) {
  return stream.id() != 0 &&
         stream.id() == static_cast<c10::StreamId>(reinterpret_cast<std::intptr_t>(stream.stream()));
}

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(c10::Device device) : device_(device) {}
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
  TraceRecorderOptions recorder_options() override;
  std::optional<std::string> end(const OpTrace* trace, const CaptureOptions& options) override;
  void plan_memory(memory::StepRun run) override { run_to_plan_by_ = std::move(run); }
  void choose(const OpTrace* trace, const SaveStorage& save) override;
  void abandon() noexcept override;
  std::optional<Diagnosis> offence(const OpTrace* trace) const override;
  std::optional<Diagnosis> explain(const c10::Error& error, const OpTrace* trace) const override;

  void copy_inputs(std::span<const at::Tensor> sources) override;
  void copy_inputs_now(std::span<const at::Tensor> sources) override {
    bind_context();
    order_behind_replays();
    copies_.copy_now(executable(), sources);
  }
  void keep_inputs() override { copies_.disable_all(executable()); }
  void instantiate() override;
  void replay() override;
  void keep_numbers(std::function<bool(std::size_t operation)> wanted) override { wanted_numbers_ = std::move(wanted); }
  bool has_number(std::size_t operation, std::size_t argument) override;
  void set_number(std::size_t operation, std::size_t argument, const c10::IValue& value) override {
    numbers_->calls.set(operation, argument, value);
  }
  bool runs_unknown_kernels() override { return numbers_ && numbers_->segments->any_of_no_operation(); }
  void replay_operations(std::size_t first, std::size_t last) override;
  std::optional<CalledOperation> failed() const noexcept override {
    if (failed_ == 0) return std::nullopt;
    return CalledOperation{.number = failed_, .info = &numbers_->calls.info(failed_)};
  }
  std::size_t last_called(std::size_t operation) const noexcept override {
    return numbers_ ? numbers_->calls.last_by_hand(operation) : 0;
  }
  void watch_replays(const std::vector<std::string>& groups, const std::string& collectives) override {
    watched_.emplace(device_, groups, collectives);
  }
  void reset() noexcept override;

  GraphPoolRef pool() const override { return GraphPoolRef(pool_); }
  void describe(GraphInfo& info) const override;
  void account(GraphMemory& memory) const override;
  void write_dot(std::ostream& out, const OpTrace* trace) const override;
  const parallel::LaneChart* lanes() const noexcept override { return branches_ ? branches_->chart() : nullptr; }
  void* raw_graph() const noexcept override { return rewired() != nullptr ? rewired()->get() : captured_graph(); }
  void* raw_executable() const noexcept override { return executable_.get(); }

 private:
  [[nodiscard]] bool is_broken() const;
  [[nodiscard]] Diagnosis explain_break(const OpTrace* trace) const;
  [[nodiscard]] CUgraphExec executable();
  [[nodiscard]] CUgraph captured_graph() const noexcept { return const_cast<CapturedGraph&>(*graph_).raw_cuda_graph(); }
  // The graph of the branches, where replays run it.
  [[nodiscard]] const RewiredGraph* rewired() const noexcept { return branches_ ? branches_->graph() : nullptr; }
  void end_capture();
  void check_scratch_is_free();
  void keep_pieces_apart();
  [[nodiscard]] bool try_branches(const OpTrace& trace, const SaveStorage& save);
  [[nodiscard]] bool is_in_pool(std::uintptr_t address) const {
    return PoolTurn(pool_->turns()).ledger().owns(address);
  }
  void enter_into_ledger(const OpTrace* trace);
  void leave_ledger() noexcept;
  void check_results_intact(const PoolLedger& ledger) const;
  [[noreturn]] static void refuse_inside_capture();
  void note_stream(CUDAStream stream, const PoolTurn& turn);
  void order_behind_replays();
  struct Piece {
    bool is_first = true;
    bool is_last = true;
  };
  void launch(const Executable* executable, Piece piece);
  [[nodiscard]] std::vector<Segments::Segment*> pieces(std::size_t first, std::size_t last);
  void give_numbers();
  void run_by_hand(std::size_t operation);
  void play(std::size_t first, std::size_t last);

  // What a replay reads comes first: it fits two cache lines.
  c10::Device device_;
  Executable executable_;
  GeneratorClock clock_;
  std::optional<c10::Stream> last_stream_;
  PoolLedger::GraphId ledger_id_ = 0;
  std::shared_ptr<CudaPool> pool_;
  InputCopies copies_;
  std::optional<WatchedReplays> watched_;  // where they communicate

  memory::StepRun run_to_plan_by_;  // until the recording begins
  std::shared_ptr<PlannedMemory> planned_;
  bool keeps_pieces_apart_ = false;  // later graphs have none of its memory for scratch
  std::unique_ptr<CapturedGraph> graph_;
  std::unique_ptr<Branches> branches_;  // where they were asked for
  std::vector<c10::Storage> kept_;
  std::vector<at::Tensor> pinned_;   // that its copies from the host read
  std::vector<CUDAStream> streams_;  // it was replayed on
  std::unique_ptr<Recording> recording_;
  std::function<bool(std::size_t)> wanted_numbers_;
  std::unique_ptr<Numbers> numbers_;              // where any operation may be given others, or is an island
  std::optional<PoolReturns::Pause> no_returns_;  // while recording
  std::optional<LeafStreams> leaf_streams_;       // from the first eager run on
  std::vector<at::Generator> drawn_from_;         // by replays
  ExecutableMemory executable_memory_;
  std::size_t failed_ = 0;  // operation that was run by hand and threw in the last replay
};

std::unique_ptr<StreamScope> CudaBackend::enter(const CaptureOptions& options) {
  pool_ = std::static_pointer_cast<CudaPool>(pool_for(options, device_));
  const CUDAStream stream =
      options.stream ? CUDAStream(*options.stream) : thread_stream(StreamPurpose::capture, device_.index());
  leaf_streams_.emplace(stream);
  return std::make_unique<CudaStreamScope>(stream, pool_);
}

void CudaBackend::begin(const CaptureOptions& options) {
  recording_ = std::make_unique<Recording>(*pool_, c10::cuda::getCurrentCUDAStream(device_.index()), options);
  if (wants_branches(options)) branches_ = std::make_unique<Branches>(options, *pool_, recording_->stream);
  graph_ = std::make_unique<CapturedGraph>();
  std::vector<at::Generator> generators = default_generators();
  generators.insert(generators.end(), options.generators.begin(), options.generators.end());
  if (options.trace) {
    recording_->keeper.emplace(
        [this](const void* address) { return is_in_pool(reinterpret_cast<std::uintptr_t>(address)); });
  }
  if (options.trace) {
    const bool any_wanted = static_cast<bool>(wanted_numbers_);
    numbers_.reset(new Numbers{.calls = NumberedCalls(device_, std::move(wanted_numbers_),
                                                      [this](std::uintptr_t address) { return is_in_pool(address); }),
                               .segments = {},
                               .nodes = {},
                               .any_wanted = any_wanted});
  }
  if (pool_->family() != nullptr) recording_->workspaces.emplace(*pool_->family(), recording_->stream.stream());
  PoolReturns::instance().make_room(device_.index());
  no_returns_.emplace();
  recording_->drawable = graph_->begin(pool_->id(), to_cuda(options.mode), generators);
  if (!run_to_plan_by_.blocks.empty()) {
    planned_ = PlannedMemory::begin(recording_->stream, pool_->id(), std::exchange(run_to_plan_by_, {}),
                                    pool_->room_for_plan());
  }
  recording_->generators.emplace(
      graph_->drawn(), [this] { return graph_ ? graph_->drawn_states() : 0; }, options.set_generators);
  const CUstream stream = recording_->stream.stream();
  copies_.record(options.inputs, stream, [&] { return recording_->frontier.advance(stream); });
  if (KeepHostCopies::are_wanted()) recording_->host_copies.emplace();
}

std::vector<trace::OpObserver*> CudaBackend::observers() {
  std::vector<trace::OpObserver*> all = {&*leaf_streams_, &*recording_->generators};
  if (recording_->keeper) all.insert(all.end(), {&recording_->watch, &*recording_->keeper});
  if (planned_) all.push_back(planned_.get());
  if (numbers_) all.push_back(&numbers_->calls);
  if (branches_) {
    const auto more = branches_->observers(*recording_->allocations);
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

TraceRecorderOptions CudaBackend::recorder_options() {
  // Only the generators that take part can move while a capture is open.
  const auto position = [drawn = graph_->drawn()] {
    std::uint64_t sum = 0;
    for (const torch_abi::DrawCount& one : drawn) sum += one.value();
    return sum;
  };
  const auto new_nodes = [this]() -> std::span<const void* const> {
    const auto nodes = recording_->frontier.advance(recording_->stream.stream());
    return {reinterpret_cast<const void* const*>(nodes.data()), nodes.size()};
  };
  const auto everywhere = [this]() -> std::span<const void* const> {
    const auto nodes = recording_->frontier.advance_everywhere(recording_->stream.stream());
    return {reinterpret_cast<const void* const*>(nodes.data()), nodes.size()};
  };
  if (!branches_) return {.random_position = position, .new_nodes = new_nodes, .new_nodes_everywhere = everywhere};
  const auto new_blocks = [this]() -> std::span<const ByteSpan> {
    recording_->new_blocks = recording_->allocations->allocated_since(recording_->known_blocks);
    recording_->known_blocks += recording_->new_blocks.size();
    return recording_->new_blocks;
  };
  return {.random_position = position,
          .new_nodes = new_nodes,
          .new_nodes_everywhere = everywhere,
          .new_blocks = new_blocks};
}

std::optional<Diagnosis> CudaBackend::offence(const OpTrace* trace) const {
  if (recording_ == nullptr) return std::nullopt;
  if (is_broken()) return explain_break(trace);
  return recording_->generators->offence(trace);
}

Diagnosis CudaBackend::explain_break(const OpTrace* trace) const {
  if (recording_->other_threads) {
    if (auto culprit = recording_->other_threads->explain()) return *std::move(culprit);
  }
  return explain_broken(recording_->watch, trace);
}

bool CudaBackend::is_broken() const {
  return recording_->broke || recording_->watch.offender() ||
         capture_status(recording_->stream.stream()) == CaptureStatus::invalidated;
}

std::optional<Diagnosis> CudaBackend::explain(const c10::Error& error, const OpTrace* trace) const {
  if (auto exhausted = explain_out_of_memory(error, recording_->watch, trace))
    return exhausted;  // also where it broke it
  if (auto known = explain_default_stream(error, recording_->watch)) return known;
  if (auto known = explain_cold_library(error, recording_->watch, trace)) return known;
  if (is_broken()) return explain_break(trace);
  return explain_error(error, recording_->watch, trace);
}

std::optional<std::string> CudaBackend::end(const OpTrace* trace, const CaptureOptions& options) {
  const CUstream stream = recording_->stream.stream();
  if (recording_->host_copies) {
    pinned_ = recording_->host_copies->take();
    recording_->host_copies.reset();
  }
  (void)recording_->frontier.advance(stream);
  clock_ = GeneratorClock::append_advance(recording_->drawable, graph_->capture_id(), recording_->generators->drew());
  for (const auto& [state, generator] : recording_->drawable) {
    if (clock_.draws_from(state)) drawn_from_.push_back(generator);
  }
  const auto last = recording_->frontier.advance(stream);
  const std::vector<CUgraphNode> advance(last.begin(), last.end());
  if (branches_) branches_->stop_recording();
  end_capture();
  if (planned_) check_scratch_is_free();
  no_returns_.reset();
  std::size_t nodes = 0;
  check(Driver::get().graph_get_nodes(captured_graph(), nullptr, &nodes), "cuGraphGetNodes");
  const bool is_empty = nodes == copies_.nodes().size();
  const Diagnosis why_empty = is_empty ? explain_empty(trace, device_.str()) : Diagnosis{};
  if (is_empty && !options.allow_empty) throw CaptureError(why_empty);
  pool_->graphs().set(this, {});
  if (options.instantiate) instantiate();

  std::vector<ByteSpan> allocated;
  if (branches_) allocated = recording_->allocations->allocated_since(0);
  enter_into_ledger(trace);
  if (numbers_) {
    numbers_->calls.finish(*trace);
    if (numbers_->calls.empty() && !numbers_->any_wanted) {
      numbers_.reset();
    } else {
      numbers_->segments.emplace(captured_graph(), *trace, copies_.nodes(), advance, [this](ExecutableMemory more) {
        executable_memory_.device += more.device;
        executable_memory_.host += more.host;
        pool_->graphs().set(this, executable_memory_);
      });
    }
  }
  if (numbers_ && !numbers_->calls.by_hand().empty()) {
    branches_.reset();
    if (planned_) keep_pieces_apart();
  }
  if (branches_) {
    branches_->rebuild({.graph = captured_graph(),
                        .trace = trace,
                        .generators = graph_->words(),
                        .advance = advance,
                        .copies = &copies_,
                        .allocated = std::move(allocated),
                        .instantiate = options.instantiate});
  }
  if (recording_->keeper) kept_ = recording_->keeper->take();
  recording_.reset();
  leaf_streams_.reset();
  return is_empty ? std::optional(why_empty.what) : std::nullopt;
}

void CudaBackend::choose(const OpTrace* trace, const SaveStorage& save) {
  if (!branches_ || !branches_->undecided()) return;
  if (std::string why_not = branches_->why_no_trial(); !why_not.empty()) {
    branches_->decide_untimed(std::move(why_not));
    if (rewired() == nullptr) return;
  } else if (!try_branches(*trace, save)) {
    branches_->drop();
    return;
  }
  executable_memory_ = branches_->executable_memory();
  pool_->graphs().set(this, executable_memory_);
  executable_ = branches_->take_executable();
  if (numbers_) numbers_->given_at = 0;
  copies_ = branches_->exchange_copies(std::move(copies_));
}

// Which lanes may run beside each other was judged by where their tensors lie.
bool CudaBackend::has_number(std::size_t operation, std::size_t argument) {
  if (!numbers_ || !numbers_->calls.has(operation, argument)) return false;
  if (rewired() == nullptr || !numbers_->calls.is_on_device(operation, argument)) return true;
  if (!branches_->info().automatic) return false;
  copies_ = branches_->give_up("the step is given other tensors of the device from call to call");
  numbers_->nodes.clear();
  instantiate();
  return true;
}

// The trial leaves the generator's numbers on the device moved on, and the host's as they were.
bool CudaBackend::try_branches(const OpTrace& trace, const SaveStorage& save) {
  if (std::string why_not = save_for_trial(trace, kept_, device_.index(), save); !why_not.empty()) {
    branches_->decide_untimed(std::move(why_not));
    return rewired() != nullptr;
  }
  const c10::Stream stream = c10::cuda::getCurrentCUDAStream(device_.index());
  const PoolTurn turn(pool_->turns());
  turn.order().enter(stream);
  const ForeignDraws::Unseen draws(drawn_from_);
  GeneratorClock::Turn numbers(clock_, stream);
  numbers.forget();  // before anything can throw
  // Alone in its pool it overwrites nobody's results, and what it computes is nobody's: it does not count as a replay.
  if (ledger_id_ != 0 && turn.ledger().graphs() > 1) turn.ledger().sign(ledger_id_);
  const bool is_faster = branches_->try_against(executable_);
  turn.order().leave();
  numbers.leave();
  return is_faster;
}

void CudaBackend::instantiate() {
  executable_ = {};
  const ExecutableAccount account;
  executable_ = Executable::instantiate(static_cast<CUgraph>(raw_graph()),
                                        {.auto_free_on_launch = true, .use_node_priority = true});
  executable_memory_ = account.taken();
  pool_->graphs().set(this, executable_memory_);
  copies_.start(executable_.get());
  if (numbers_) numbers_->given_at = 0;
}

CUgraphExec CudaBackend::executable() {
  if (executable_.get() == nullptr) [[unlikely]]
    instantiate();
  return executable_.get();
}

void CudaBackend::end_capture() {
  if (planned_) planned_->end();
  try {
    graph_->finish();
  } catch (const c10::AcceleratorError& error) {
    // Runtime and driver give capture errors the same numbers.
    throw CaptureError(explain_end(static_cast<CUresult>(error.get_error_code()), recording_->watch));
  }
}

// Replays of earlier graphs would overwrite what is held there.
void CudaBackend::check_scratch_is_free() {
  const std::size_t held = planned_->settle();
  if (held == 0) return;
  throw HeldScratch(
      {.what = fmt::format("the step, now that it is captured, holds {} bytes that it had let go of in the run before: "
                           "they are scratch of earlier graphs of the pool, whose replays overwrite them",
                           held),
       .fix = "let the step hold the same tensors in each run, whether a capture is open or not"});
}

// It is launched in pieces, and what is called by hand between them may replay others.
void CudaBackend::keep_pieces_apart() {
  if (planned_->keeps_results_apart()) {
    throw HeldScratch({.what = "each replay of the step would call operations by hand, where other graphs of the pool "
                               "may be replayed, which overwrite its scratch",
                       .fix = "capture it into a pool of its own"});
  }
  const std::vector<ByteSpan> all = PoolTurn(pool_->turns()).ledger().allocated_by(ledger_id_);
  planned_->keep_all(all);
  keeps_pieces_apart_ = true;
}

void CudaBackend::enter_into_ledger(const OpTrace* trace) {
  if (trace == nullptr) return;
  std::vector<ByteSpan> reads;
  std::unordered_set<const void*> resized;  // storages from before, with memory of this capture
  for (const OpRecord& op : trace->ops()) {
    const bool resizes = trace->name(op) == trace::kResizesStorage;
    for (const TensorRecord& input : trace->inputs(op)) {
      if (resizes) resized.insert(input.storage);
      if (input.made_in_step || resized.contains(input.storage)) continue;
      if (!input.device.is_cuda() || input.span_bytes == 0) continue;
      const auto begin = reinterpret_cast<std::uintptr_t>(input.address);
      if (is_in_pool(begin)) reads.push_back({.begin = begin, .end = begin + input.span_bytes});
    }
  }
  ledger_id_ = PoolTurn(pool_->turns()).ledger().add(recording_->allocations->take(), reads);
}

void CudaBackend::leave_ledger() noexcept {
  if (pool_ != nullptr) pool_->graphs().remove(this);
  if (ledger_id_ != 0) PoolTurn(pool_->turns()).ledger().remove(std::exchange(ledger_id_, 0));
}

void CudaBackend::abandon() noexcept {
  leave_ledger();
  if (planned_) planned_->end();
  planned_.reset();
  keeps_pieces_apart_ = false;
  run_to_plan_by_ = {};
  clock_ = {};
  drawn_from_.clear();
  copies_ = {};
  executable_ = {};
  numbers_.reset();
  if (recording_ != nullptr) recording_->host_copies.reset();
  pinned_.clear();
  if (graph_ != nullptr && recording_ != nullptr) recording_->broke = is_broken();
  branches_.reset();
  if (graph_ != nullptr) {
    if (recording_ != nullptr) graph_->abandon(recording_->stream);
    graph_.reset();
  }
  if (pool_ != nullptr) pool_->drop_unused_regions();
  no_returns_.reset();
  if (recording_ != nullptr) {
    recording_->allocations.reset();
    if (recording_->other_threads) recording_->other_threads->stop();
    recording_->keeper.reset();
  }
  kept_.clear();
  pool_.reset();  // the stream scope still holds it
}

void CudaBackend::copy_inputs(std::span<const at::Tensor> sources) {
  bind_context();
  failed_ = 0;
  if (numbers_) give_numbers();
  if (numbers_ && !numbers_->calls.by_hand().empty()) {
    order_behind_replays();
    return copies_.copy_now(executable(), sources);
  }
  copies_.set_sources(executable(), sources, [this] { order_behind_replays(); });
}

// What is copied before a launch, into memory that the last replay may be reading still.
void CudaBackend::order_behind_replays() {
  const CUDAStream stream = c10::cuda::getCurrentCUDAStream(device_.index());
  if (capture_status(stream.stream()) != CaptureStatus::none) refuse_inside_capture();
  const PoolTurn turn(pool_->turns());
  pool_->check_ready();
  turn.order().enter(stream.unwrap());
  if (may_end(stream)) turn.order().leave();  // the launch enters again, if it comes so far
}

void CudaBackend::replay() {
  bind_context();
  failed_ = 0;
  (void)executable();
  if (numbers_) give_numbers();
  if (numbers_ && !numbers_->calls.by_hand().empty()) return play(1, Segments::kEnd);
  launch(&executable_, {});
}

void CudaBackend::replay_operations(std::size_t first, std::size_t last) {
  bind_context();
  failed_ = 0;
  if (numbers_) give_numbers();
  play(first, last);
}

// To the executable; what it could not be given is to be run by hand then.
void CudaBackend::give_numbers() {
  if (numbers_->calls.are_given(numbers_->given_at)) [[likely]]
    return;
  numbers_->calls.settle();
  const auto node = [&](CUgraphNode captured) {
    if (rewired() == nullptr) return captured;
    CUgraphNode& copy = numbers_->nodes[captured];
    if (copy == nullptr) {
      check(Driver::get().graph_node_find_in_clone(&copy, captured, rewired()->get()), "cuGraphNodeFindInClone");
    }
    return copy;
  };
  numbers_->calls.give(
      {.executable = executable(), .node = node, .first = 1, .last = Segments::kEnd, .given_at = numbers_->given_at});
}

// The segments between the operations that have to be run by hand, made and given their numbers: in the middle of a step nothing
// of that may fail. nullptr: there are no operations between.
std::vector<Segments::Segment*> CudaBackend::pieces(std::size_t first, std::size_t last) {
  std::vector<Segments::Segment*> pieces;
  const auto add = [&](std::size_t from, std::size_t to) {
    Segments::Segment* const segment = from > to ? nullptr : &numbers_->segments->get(from, to);
    const bool has_nodes = segment != nullptr && segment->executable.get() != nullptr;
    pieces.push_back(has_nodes ? segment : nullptr);
    if (!has_nodes) return;
    numbers_->calls.give({.executable = segment->executable.get(),
                          .node = [segment](CUgraphNode captured) { return segment->node(captured); },
                          .first = from,
                          .last = to,
                          .given_at = segment->given_at});
  };
  std::vector<NumberedCalls::ByHand> by_hand;
  do {  // what cannot be given its number has to be run by hand, too
    pieces.clear();
    by_hand = numbers_->calls.by_hand();
    std::size_t from = first;
    for (const auto& [operation, place, is_moved] : by_hand) {
      if (place < first || place > last) continue;
      add(from, is_moved ? place : place - 1);
      from = place + 1;
    }
    add(from, last);
  } while (by_hand != numbers_->calls.by_hand());
  return pieces;
}

// The operations from `first` to `last`, those that have to be run by hand in their places.
void CudaBackend::play(std::size_t first, std::size_t last) {
  const c10::cuda::OptionalCUDAGuard on_device(device_);
  const std::vector<Segments::Segment*> segments = pieces(first, last);
  const std::vector<NumberedCalls::ByHand> by_hand = numbers_->calls.by_hand();
  std::optional<PoolState::InPieces> in_pieces;
  if (planned_ && !keeps_pieces_apart_ && !by_hand.empty()) in_pieces.emplace(*pool_);
  auto segment = segments.begin();
  bool is_first = first == 1;
  const auto launch_next = [&] {
    const bool is_last = segment + 1 == segments.end() && last == Segments::kEnd;
    // The first of all is asked whether it may run, and the last one ends the replay, also where they are empty.
    if (*segment != nullptr || is_first || is_last) {
      launch(*segment == nullptr ? nullptr : &(*segment)->executable, {.is_first = is_first, .is_last = is_last});
    }
    is_first = false;
    ++segment;
  };
  for (const auto& [operation, place, is_moved] : by_hand) {
    if (place < first || place > last) continue;
    launch_next();
    failed_ = operation;
    run_by_hand(operation);
    failed_ = 0;
  }
  launch_next();
}

// A graph's numbers begin where its first piece is launched: what an island drew from there on, the next piece would draw again.
void CudaBackend::run_by_hand(std::size_t operation) {
  const auto drawn = [&] {
    std::uint64_t all = 0;
    for (at::Generator generator : drawn_from_) {
      const std::lock_guard lock(generator.mutex());
      all += generator.get_offset();
    }
    return all;
  };
  const std::uint64_t before = clock_.idle() ? 0 : drawn();
  numbers_->calls.run(operation);
  if (clock_.idle() || drawn() == before) return;
  throw UsageError(
      {.what =
           "a part that stays eager drew random numbers from a generator that its graph draws from too, which on CUDA "
           "is not done yet; what the step does before it has run",
       .where = fmt::format("operation {} of the step", operation),
       .fix = "draw outside of that part and pass it what was drawn, or draw there from a generator of its own"});
}

// nullptr: it is the turn of operations that are run by hand.
void CudaBackend::launch(const Executable* executable, Piece piece) {
  c10::cuda::OptionalCUDAGuard on_device;
  if (c10::cuda::current_device() != device_.index()) on_device.set_index(device_.index());
  const CUDAStream stream = c10::cuda::getCurrentCUDAStream(device_.index());
  if (capture_status(stream.stream()) != CaptureStatus::none) [[unlikely]]
    refuse_inside_capture();
  const PoolTurn turn(pool_->turns());
  pool_->check_ready();
  if (ledger_id_ != 0 && piece.is_first) check_results_intact(turn.ledger());
  turn.order().enter(stream.unwrap());
  std::optional<ForeignDraws::Unseen> draws;
  if (!clock_.idle()) draws.emplace(drawn_from_);
  GeneratorClock::Turn numbers(clock_, stream.unwrap());
  if (watched_) [[unlikely]]
    WatchedReplays::check();
  if (executable != nullptr) executable->launch(stream.stream());
  if (watched_ && piece.is_last) [[unlikely]]
    watched_->launched(stream.stream());
  if (piece.is_last) numbers.launched();
  if (ledger_id_ != 0) turn.ledger().sign(ledger_id_);
  if (stream.unwrap() != last_stream_) note_stream(stream, turn);
  if (may_end(stream)) [[unlikely]] {
    turn.order().leave();
    numbers.leave();
  }
}

// It would become part of that capture as it is now: with the numbers that the generator stands at, and the inputs of this
// replay, for ever.
void CudaBackend::refuse_inside_capture() {
  throw UsageError(
      {.what = "replay() was called while the current stream is being captured by other code; graphs do not "
               "nest, and nothing was launched",
       .fix = "inside the other capture, call the code that the graph was captured from; or replay outside of it"});
}

// Memory that the graph lets go of may be in use there until that work is done.
void CudaBackend::note_stream(CUDAStream stream, const PoolTurn& turn) {
  last_stream_ = stream.unwrap();
  pool_->note_replays_on(stream, turn);
  if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) streams_.push_back(stream);
}

void CudaBackend::check_results_intact(const PoolLedger& ledger) const {
  const PoolLedger::GraphId culprit = ledger.overwritten_by(ledger_id_);
  if (culprit == 0) [[likely]]
    return;
  throw ReplayError(
      {.what = fmt::format("graph {} of the pool reads a result of another graph that a replay of graph {} has "
                           "overwritten since it was produced; nothing was launched",
                           ledger_id_, culprit),
       .where = "graphs of a pool are numbered in the order of their capture, from 1",
       .fix = fmt::format("replay the graph that produces it again before this one, or capture graph {} in a pool of "
                          "its own",
                          culprit),
       .rule = "PG909"});
}

void CudaBackend::reset() noexcept {
  leave_ledger();
  watched_.reset();
  executable_ = {};
  clock_ = {};
  drawn_from_.clear();
  copies_ = {};
  numbers_.reset();
  branches_.reset();
  graph_.reset();
  for (const CUDAStream& stream : streams_) {
    for (const c10::Storage& storage : kept_) {
      c10::cuda::CUDACachingAllocator::recordStream(storage.data_ptr(), stream);
    }
  }
  for (const CUDAStream& stream : streams_) {
    for (const at::Tensor& tensor : pinned_) {
      at::getHostAllocator(at::kCUDA)->record_event(tensor.mutable_data_ptr(),
                                                    tensor.storage().data_ptr().get_context(), stream.unwrap());
    }
  }
  kept_.clear();
  pinned_.clear();
  if (planned_) {
    for (const CUDAStream& stream : streams_) planned_->record_stream(stream);
  }
  planned_.reset();
  keeps_pieces_apart_ = false;
  streams_.clear();
  last_stream_.reset();
  pool_.reset();
  recording_.reset();
}

void CudaBackend::describe(GraphInfo& info) const {
  const GraphTopology topology = GraphTopology::read(static_cast<CUgraph>(raw_graph()));
  info.backend = "cuda";
  info.nodes = topology.nodes().size();
  info.edges = topology.edges().size();
  info.types = topology.count_by_type();
  info.kernels = info.types.count("kernel") != 0 ? info.types.at("kernel") : 0;
  info.pool_bytes = pool_->bytes();
  info.planned_bytes = planned_ ? planned_->bytes() : 0;
  info.executable_bytes = executable_memory_.device;
  info.retained_bytes = bytes_of(kept_);
  info.draws_random_numbers = !clock_.idle();
  if (branches_) info.branches = branches_->info();
}

void CudaBackend::account(GraphMemory& memory) const {
  memory.pool = pool_->memory();
  memory.planned = planned_ ? planned_->bytes() : 0;
  memory.executable = executable_memory_;
  memory.retained = bytes_of(kept_);
  if (branches_) {
    memory.lane_workspaces = branches_->info().workspace_bytes;
    memory.kept_for_lanes = branches_->info().held_bytes;
  }
  if (ledger_id_ == 0) return;
  const PoolTurn turn(pool_->turns());
  const std::vector<ByteSpan>& own = turn.ledger().allocated_by(ledger_id_);
  memory.own = total_bytes(own);
  memory.shared = memory.own - total_bytes(without(own, turn.ledger().allocated_beside(ledger_id_)));
}

void CudaBackend::write_dot(std::ostream& out, const OpTrace* trace) const {
  write_graph_dot(out, captured_graph(), rewired(), trace);
}

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(c10::Device device) { return std::make_unique<CudaBackend>(device); }

}  // namespace pianola::graph
