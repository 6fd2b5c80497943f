#include <pianola/graph/input_keeper.hpp>

#include <pianola/trace/step_memory.hpp>

namespace pianola::graph {

void InputKeeper::on_op_begin(const trace::OpSpan& op) {
  for (const c10::IValue& value : op.inputs) {
    trace::for_each_tensor(value, [&](const at::Tensor& tensor) {
      const c10::StorageImpl* storage = trace::storage_of(tensor);
      if (storage == nullptr || op.memory->made(tensor) || !seen_.insert(storage).second) return;
      if (guarded_ && guarded_(storage->data())) return;
      kept_.push_back(tensor.storage());
    });
  }
}

std::size_t bytes_of(const std::vector<c10::Storage>& storages) {
  std::size_t bytes = 0;
  for (const c10::Storage& storage : storages) bytes += storage.nbytes();
  return bytes;
}

}  // namespace pianola::graph
