#include <pianola/graph/cuda/executable_share.hpp>

#include <pianola/core/error.hpp>

#include <utility>

namespace pianola::graph {

// Note [Accounts of shared executables]
// A pool that sleeps holds the lock of its PoolGraphs while executables are dropped and made again, in turns of the pool. So nobody who has
// a turn calls PoolGraphs.

/// For whom an executable is counted that its graph has left. Made before the turn in which that is, and told to accounts after it.
class ExecutableShare::Heir {
 public:
  explicit Heir(CudaPool& pool) noexcept : pool_(pool) {}
  Heir(const Heir&) = delete;
  Heir& operator=(const Heir&) = delete;
  ~Heir() {
    if (graph_ != nullptr) pool_.graphs().add_memory(graph_, memory_);
  }
  void is(const void* graph, ExecutableMemory memory) noexcept {
    graph_ = graph;
    memory_ = memory;
  }

 private:
  CudaPool& pool_;
  const void* graph_ = nullptr;
  ExecutableMemory memory_;
};

GraphShape ExecutableShare::shape_of(CudaPool& pool, CUgraph nodes) const {
  const NodesAlone alone(*this, pool);
  return GraphShape::read(nodes);
}

bool ExecutableShare::join(CudaPool& pool, CUgraph nodes, InputCopies& copies) {
  const GraphShape shape = shape_of(pool, nodes);
  {
    const PoolTurn turn(pool.turns());
    auto one = pool.shared_executables().give_one(graph_, nodes, shape, copies.nodes().size(), turn);
    if (one == nullptr) return false;
    adopt(std::move(one), nodes, copies);
  }
  count(pool);
  return true;
}

void ExecutableShare::adopt(std::shared_ptr<SharedExecutable> shared, CUgraph nodes, InputCopies& copies) {
  shared_ = std::move(shared);
  nodes_ = nodes;
  copies.start_shared(shared_->copies());
}

void ExecutableShare::count(CudaPool& pool) const { pool.graphs().set(graph_, counted(pool).memory); }

std::optional<UpdateRefusal> ExecutableShare::join(CudaPool& pool, const ExecutableShare& other, CUgraph nodes,
                                                   InputCopies& copies) {
  const GraphShape shape = shape_of(pool, nodes);
  {
    const PoolTurn turn(pool.turns());
    if (!other.shared_->may_take(shape, copies.nodes().size())) {
      return UpdateRefusal{.result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED,
                           .reason = "the graphs differ in the number of nodes or in their edges"};
    }
    if (auto refusal = other.shared_->give(graph_, nodes, turn)) return refusal;
    other.shared_->add(graph_, turn);
    adopt(other.shared_, nodes, copies);
  }
  count(pool);
  return std::nullopt;
}

void ExecutableShare::offer(CudaPool& pool, Executable made, ExecutableMemory memory, CUgraph nodes,
                            InputCopies& copies) {
  GraphShape shape = shape_of(pool, nodes);
  auto shared = std::make_shared<SharedExecutable>(
      std::move(made),
      SharedExecutable::Source{.graph = graph_, .nodes = nodes, .copies = copies.nodes(), .memory = memory},
      std::move(shape));
  {
    const PoolTurn turn(pool.turns());
    pool.shared_executables().add(shared, turn);
    adopt(std::move(shared), nodes, copies);
  }
  note_made();
  count(pool);
}

void ExecutableShare::note_made() {
  std::erase_if(made_, [this](const auto& one) { return one.expired() || one.lock() == shared_; });
  made_.push_back(shared_);
}

// An address that stands for nobody's parameters has what was noted settled, also where the executable has this graph's.
void ExecutableShare::launch(Launcher& launcher, CudaPool& pool, InputCopies& copies, MakeOwn make_own) {
  const void* const as = copies.is_settled() ? graph_ : &copies;
  Heir heir(pool);
  launcher.launch_shared(pool, *shared_, as, [&](const PoolTurn& turn, CUstream stream) -> const Executable& {
    return take(turn, stream, heir, copies, make_own);
  });
}

// It took these nodes before, so that what it refuses is no room, or the driver's failure: the graph has one of its own from then on.
const Executable& ExecutableShare::take(const PoolTurn& turn, CUstream stream, Heir& heir, InputCopies& copies,
                                        MakeOwn make_own) {
  if (shared_->is_of(graph_) || try_give(turn)) {
    copies.know_by(shared_->copies());
    copies.settle(raw(), stream);
    return shared_->executable();
  }
  const Executable& own = make_own();
  leave(heir, turn);
  copies.know_by_own();
  copies.settle(own.get(), stream);
  return own;
}

bool ExecutableShare::try_give(const PoolTurn& turn) {
  try {
    return !shared_->give(graph_, nodes_, turn);
  } catch (const DeviceError&) {
    return false;
  }
}

void ExecutableShare::leave(CudaPool& pool) noexcept {
  if (shared_ == nullptr) return;
  Heir heir(pool);
  const PoolTurn turn(pool.turns());
  leave(heir, turn);
}

void ExecutableShare::leave(Heir& heir, const PoolTurn& turn) noexcept {
  const bool was_counted = shared_->bearer() == graph_;
  shared_->remove(graph_, turn);
  if (was_counted) heir.is(shared_->bearer(), shared_->memory());
  shared_.reset();
}

// One that was made again is made of another graph by now.
void ExecutableShare::hand_over(CudaPool& pool, CapturedGraph& graph) noexcept {
  std::vector<std::shared_ptr<SharedExecutable>> in_use;  // some may end with this, behind the turn
  for (const auto& one : std::exchange(made_, {})) {
    if (auto made = one.lock()) in_use.push_back(std::move(made));
  }
  if (in_use.empty()) return;
  const CUgraph nodes = graph.nodes();
  const PoolTurn turn(pool.turns());
  std::erase_if(in_use, [nodes](const auto& made) { return !made->is_made_of(nodes); });
  if (in_use.empty()) return;
  const SharedExecutable::KeptGraph kept = graph.release();
  for (const auto& made : in_use) made->keep(kept, turn);
}

void ExecutableShare::drop_executable(CudaPool& pool) noexcept {
  if (shared_ == nullptr) return;
  const PoolTurn turn(pool.turns());
  shared_->drop(turn);
}

void ExecutableShare::make_again(CudaPool& pool, Executable made, ExecutableMemory memory, CUgraph nodes,
                                 InputCopies& copies) {
  note_made();
  const PoolTurn turn(pool.turns());
  shared_->make_again(std::move(made), {.graph = graph_, .nodes = nodes, .copies = copies.nodes(), .memory = memory},
                      turn);
  copies.start_shared(shared_->copies());
}

ExecutableShare::Counted ExecutableShare::counted(CudaPool& pool) const {
  if (shared_ == nullptr) return {.memory = {}, .is_shared = false};
  const PoolTurn turn(pool.turns());
  return {.memory = shared_->bearer() == graph_ ? shared_->memory() : ExecutableMemory(),
          .is_shared = shared_->graphs() > 1};
}

}  // namespace pianola::graph
