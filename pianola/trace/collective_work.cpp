#include <pianola/trace/collective_work.hpp>

#include <pianola/trace/plain_check.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <pthread.h>

#include <array>
#include <chrono>
#include <exception>
#include <string_view>
#include <thread>
#include <utility>

namespace pianola::trace {
namespace {

bool runs_on_the_cpu(c10::ArrayRef<c10::IValue> inputs) {
  bool found = false;
  for (const c10::IValue& value : inputs) {
    for_each_tensor(value, [&](const at::Tensor& tensor) { found = found || tensor.is_cpu(); });
  }
  return found;
}

}  // namespace

std::vector<c10::intrusive_ptr<c10d::Work>> works_of(c10::ArrayRef<c10::IValue> outputs) {
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  for (const c10::IValue& value : outputs) {
    if (!value.isObject()) continue;
    auto work = value.toCustomClass<c10d::Work>();
    if (work) works.push_back(std::move(work));
  }
  return works;
}

bool is_waited_for(const OpInfo& op, c10::ArrayRef<c10::IValue> inputs) {
  return op.collective && !op.done_by_wait && may_be_in_a_step(oddity_of_operator(op.schema().name())) &&
         runs_on_the_cpu(inputs);
}

bool waits_until_done(c10::ArrayRef<c10::IValue> outputs, ForRanks patience) {
  constexpr std::chrono::seconds kPatience(3);
  const auto end = std::chrono::steady_clock::now() + kPatience;
  for (const auto& work : works_of(outputs)) {
    while (!work->isCompleted()) {
      if (patience == ForRanks::a_while && std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
  return true;
}

bool CollectiveBuffers::are_made_by(const OpInfo& op, c10::ArrayRef<c10::IValue> inputs) {
  return op.done_by_wait && runs_on_the_cpu(inputs);
}

void CollectiveBuffers::note(c10::ArrayRef<c10::IValue> allocated) {
  for (const c10::IValue& value : allocated) {
    for_each_tensor(value, [&](const at::Tensor& tensor) { buffers_.insert(tensor.storage()); });
  }
}

bool CollectiveBuffers::are_read_by(c10::ArrayRef<c10::IValue> inputs) const {
  if (buffers_.empty()) return false;
  bool reads = false;
  for (const c10::IValue& value : inputs) {
    for_each_tensor(value, [&](const at::Tensor& tensor) { reads = reads || buffers_.contains(storage_of(tensor)); });
  }
  return reads;
}

// torch names them pt_gloo_runloop, pt_mpi_runloop.
bool belongs_to_a_process_group() noexcept {
  thread_local const bool belongs = [] {
    std::array<char, 16> name{};
    return pthread_getname_np(pthread_self(), name.data(), name.size()) == 0 &&
           std::string_view(name.data()).ends_with("_runloop");
  }();
  return belongs;
}

void BegunCollectives::on_op_begin(const OpSpan& op) {
  if (!op.info->collective) return;
  bool is_on_gpus = false;
  for (const c10::IValue& value : op.inputs) {
    for_each_tensor(value, [&](const at::Tensor& tensor) { is_on_gpus = is_on_gpus || tensor.is_cuda(); });
  }
  const std::lock_guard lock(mutex_);
  if (is_on_gpus) open_.insert(op.number);
}

void BegunCollectives::on_op_end(const OpSpan& op) {
  if (!op.info->collective) return;
  const std::lock_guard lock(mutex_);
  if (open_.erase(op.number) == 0) return;
  for (auto& work : works_of(op.outputs)) works_.push_back(std::move(work));
}

void BegunCollectives::let_go() noexcept {
  for (const auto& work : works_) {
    try {
      work->wait();
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): who waits for it next is told
    }
  }
  works_.clear();
}

}  // namespace pianola::trace
