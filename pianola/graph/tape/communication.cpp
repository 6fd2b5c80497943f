#include <pianola/graph/tape/communication.hpp>

#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <algorithm>
#include <utility>

namespace pianola::graph {

void Communication::note_arrival() {
  const trace::QuietScope quiet;
  for (const at::Tensor& tensor : written) arrived.push_back(tensor.clone());
}

trace::MemoryRanges memory_of(c10::ArrayRef<at::Tensor> tensors) {
  trace::MemoryRanges memory;
  for (const at::Tensor& tensor : tensors) memory.add(tensor);
  return memory;
}

trace::MemoryRanges memory_of(c10::ArrayRef<c10::IValue> values) {
  trace::MemoryRanges memory;
  for (const c10::IValue& value : values) {
    trace::for_each_tensor(value, [&](const at::Tensor& tensor) { memory.add(tensor); });
  }
  return memory;
}

void PendingWork::add(std::string_view name, c10::ArrayRef<c10::IValue> inputs, c10::ArrayRef<c10::IValue> outputs) {
  all_.push_back({.name = name, .works = trace::works_of(outputs), .memory = memory_of(inputs)});
}

void PendingWork::wait(const One& one) {
  for (const auto& work : one.works) communicate(one.name, [&] { work->wait(); });
}

void PendingWork::settle(c10::ArrayRef<c10::IValue> values) {
  if (all_.empty()) return;
  const trace::MemoryRanges used = memory_of(values);
  const auto waits_for = [&](const One& one) { return one.memory.overlap(used); };
  for (const One& one : all_) {
    if (waits_for(one)) wait(one);
  }
  std::erase_if(all_, waits_for);
}

void PendingWork::settle_all() {
  for (const One& one : std::exchange(all_, {})) wait(one);
}

}  // namespace pianola::graph
