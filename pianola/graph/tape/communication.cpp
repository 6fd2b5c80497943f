#include <pianola/graph/tape/communication.hpp>

#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <algorithm>
#include <utility>

namespace pianola::graph {

void PendingWork::add(c10::ArrayRef<c10::IValue> inputs, c10::ArrayRef<c10::IValue> outputs,
                      std::shared_ptr<Communication> arrives) {
  One one{.works = {}, .memory = {}, .arrives = std::move(arrives)};
  for (const c10::IValue& value : inputs) {
    trace::for_each_tensor(value, [&](const at::Tensor& tensor) { one.memory.push_back(trace::storage_of(tensor)); });
  }
  for (const c10::IValue& value : outputs) {
    if (value.isObject()) one.works.push_back(value.toCustomClass<c10d::Work>());
  }
  all_.push_back(std::move(one));
}

void PendingWork::settle(One& one) {
  for (const auto& work : one.works) work->wait();
  if (one.arrives == nullptr) return;
  const trace::QuietScope quiet;
  for (const at::Tensor& tensor : one.arrives->written) one.arrives->arrived.push_back(tensor.clone());
}

void PendingWork::settle(c10::ArrayRef<c10::IValue> values) {
  if (all_.empty()) return;
  const auto is_used = [&](const One& one) {
    bool used = false;
    for (const c10::IValue& value : values) {
      trace::for_each_tensor(value, [&](const at::Tensor& tensor) {
        used = used || std::find(one.memory.begin(), one.memory.end(), trace::storage_of(tensor)) != one.memory.end();
      });
    }
    return used;
  };
  for (One& one : all_) {
    if (is_used(one)) settle(one), one.memory.clear();
  }
  std::erase_if(all_, [](const One& one) { return one.memory.empty(); });
}

void PendingWork::settle_all() {
  for (One& one : std::exchange(all_, {})) settle(one);
}

}  // namespace pianola::graph
