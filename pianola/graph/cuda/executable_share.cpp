#include <pianola/graph/cuda/executable_share.hpp>

#include <pianola/core/error.hpp>

#include <utility>

namespace pianola::graph {

bool ExecutableShare::join(CudaPool& pool, CUgraph nodes, InputCopies& copies) {
  const GraphShape shape = GraphShape::read(nodes);
  const PoolTurn turn(pool.turns());
  auto one = pool.shared_executables().give_one(graph_, nodes, shape, copies.nodes().size(), turn);
  if (one == nullptr) return false;
  adopt(std::move(one), pool, nodes, copies);
  return true;
}

void ExecutableShare::adopt(std::shared_ptr<SharedExecutable> shared, CudaPool& pool, CUgraph nodes,
                            InputCopies& copies) {
  shared_ = std::move(shared);
  nodes_ = nodes;
  copies.start_shared(shared_->copies());
  pool.graphs().set(graph_, counted());
}

std::optional<UpdateRefusal> ExecutableShare::join(CudaPool& pool, const ExecutableShare& other, CUgraph nodes,
                                                   InputCopies& copies) {
  const GraphShape shape = GraphShape::read(nodes);
  const PoolTurn turn(pool.turns());
  if (!other.shared_->may_take(shape, copies.nodes().size())) {
    return UpdateRefusal{.result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED,
                         .reason = "the graphs differ in the number of nodes or in their edges"};
  }
  if (auto refusal = other.shared_->give(graph_, nodes, turn)) return refusal;
  other.shared_->add(graph_, turn);
  adopt(other.shared_, pool, nodes, copies);
  return std::nullopt;
}

void ExecutableShare::offer(CudaPool& pool, Executable made, ExecutableMemory memory, CUgraph nodes,
                            InputCopies& copies) {
  auto shared = std::make_shared<SharedExecutable>(
      std::move(made),
      SharedExecutable::Source{.graph = graph_, .nodes = nodes, .copies = copies.nodes(), .memory = memory});
  const PoolTurn turn(pool.turns());
  pool.shared_executables().add(shared, turn);
  made_ = shared;
  adopt(std::move(shared), pool, nodes, copies);
}

// An address that stands for nobody's parameters has what was noted settled, also where the executable has this graph's.
void ExecutableShare::launch(Launcher& launcher, CudaPool& pool, InputCopies& copies, MakeOwn make_own) {
  const void* const as = copies.is_settled() ? graph_ : &copies;
  launcher.launch_shared(pool, *shared_, as, [&](const PoolTurn& turn, CUstream stream) -> const Executable& {
    return take(turn, stream, pool, copies, make_own);
  });
}

// It took these nodes before, so that what it refuses is no room, or the driver's failure: the graph has one of its own from then on.
const Executable& ExecutableShare::take(const PoolTurn& turn, CUstream stream, CudaPool& pool, InputCopies& copies,
                                        MakeOwn make_own) {
  if (shared_->is_of(graph_) || try_give(turn)) {
    copies.know_by(shared_->copies());
    copies.settle(raw(), stream);
    return shared_->executable();
  }
  const Executable& own = make_own();
  leave(pool, turn);
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
  const PoolTurn turn(pool.turns());
  leave(pool, turn);
}

void ExecutableShare::leave(CudaPool& pool, const PoolTurn& turn) noexcept {
  const bool was_counted = shared_->bearer() == graph_;
  shared_->remove(graph_, turn);
  if (was_counted && shared_->bearer() != nullptr) pool.graphs().add_memory(shared_->bearer(), shared_->memory());
  shared_.reset();
}

void ExecutableShare::hand_over(CudaPool& pool, CapturedGraph& graph) noexcept {
  const std::shared_ptr<SharedExecutable> made = std::exchange(made_, {}).lock();
  if (made == nullptr) return;
  const PoolTurn turn(pool.turns());
  if (made->is_made_of(graph.raw_cuda_graph())) made->keep(graph.release(), turn);
}

void ExecutableShare::drop_executable() noexcept {
  if (shared_ != nullptr) shared_->drop();
}

void ExecutableShare::make_again(Executable made, ExecutableMemory memory, CUgraph nodes, InputCopies& copies) {
  shared_->make_again(std::move(made), {.graph = graph_, .nodes = nodes, .copies = copies.nodes(), .memory = memory});
  made_ = shared_;
  copies.start_shared(shared_->copies());
}

ExecutableMemory ExecutableShare::counted() const noexcept {
  return shared_ != nullptr && shared_->bearer() == graph_ ? shared_->memory() : ExecutableMemory();
}

ExecutableShare::Counted ExecutableShare::counted(CudaPool& pool) const {
  const PoolTurn turn(pool.turns());
  return {.memory = counted(), .is_shared = shared_ != nullptr && shared_->graphs() > 1};
}

}  // namespace pianola::graph
