#include <pianola/graph/tape/communication.hpp>

#include <pianola/trace/tensors_of.hpp>

#include <algorithm>
#include <utility>

namespace pianola::graph {
namespace {

trace::MemoryRanges memory_of(c10::ArrayRef<c10::IValue> values) {
  trace::MemoryRanges memory;
  for (const c10::IValue& value : values) {
    trace::for_each_tensor(value, [&](const at::Tensor& tensor) { memory.add(tensor); });
  }
  return memory;
}

void wait(const std::vector<c10::intrusive_ptr<c10d::Work>>& works) {
  for (const auto& work : works) work->wait();
}

}  // namespace

void PendingWork::add(c10::ArrayRef<c10::IValue> inputs, c10::ArrayRef<c10::IValue> outputs) {
  all_.push_back({.works = trace::works_of(outputs), .memory = memory_of(inputs)});
}

void PendingWork::settle(c10::ArrayRef<c10::IValue> values) {
  if (all_.empty()) return;
  const trace::MemoryRanges used = memory_of(values);
  const auto waits_for = [&](const One& one) { return one.memory.overlap(used); };
  for (const One& one : all_) {
    if (waits_for(one)) wait(one.works);
  }
  std::erase_if(all_, waits_for);
}

void PendingWork::settle_all() {
  for (const One& one : std::exchange(all_, {})) wait(one.works);
}

}  // namespace pianola::graph
