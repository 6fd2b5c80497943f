#include <pianola/trace/host_calls.hpp>

#include <pianola/trace/arguments.hpp>
#include <pianola/trace/host_copy.hpp>
#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/tensors_of.hpp>
#include <pianola/trace/uses_values.hpp>
#include <pianola/trace/wrapped_number.hpp>

#include <ATen/Functions.h>

#include <cstddef>
#include <mutex>

namespace pianola::trace {
namespace {

thread_local HostCalls* open_calls = nullptr;

bool reads_a_number(const OpInfo& op) { return op.name == "aten::_local_scalar_dense"; }

// Memory that was read in a part of the host, in any run: a step's count lives as long as its optimizer.
class ReadOnHost {
 public:
  static ReadOnHost& instance() {
    static ReadOnHost all;
    return all;
  }
  void add(const at::Tensor& tensor) {
    const std::lock_guard lock(mutex_);
    if (tensor.has_storage()) storages_.insert(tensor.storage());
  }
  [[nodiscard]] bool has(const at::Tensor& tensor) {
    const std::lock_guard lock(mutex_);
    return storages_.contains(storage_of(tensor));
  }

 private:
  std::mutex mutex_;
  StorageSet storages_;
};

bool is_count(const at::Tensor& tensor) { return tensor.is_cpu() && tensor.numel() == 1 && tensor.has_storage(); }

bool is_wrapped(const at::Tensor& tensor) { return tensor.unsafeGetTensorImpl()->is_wrapped_number(); }

// torch.empty(()), which torch.as_tensor(0.5) fills itself, and torch.full((), 0.5).
bool makes_memory_of_cpu(const OpInfo& op, c10::ArrayRef<c10::IValue> inputs) {
  bool any = false, all_on_cpu = true;
  for (const c10::IValue& value : inputs) {
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      any = true;
      all_on_cpu = all_on_cpu && tensor.is_cpu();
    });
  }
  if (any && !op.is_empty) return false;
  const auto& arguments = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() != "device") continue;
    return inputs[i].isNone() ? all_on_cpu : inputs[i].toDevice().is_cpu();
  }
  return false;
}

}  // namespace

HostCalls::Scope::Scope(HostCalls& calls, c10::Device device, bool active) : calls_(calls) {
  calls.device_ = device;
  calls.active_ = active;
  open_calls = &calls;
}

HostCalls::Scope::~Scope() {
  open_calls = nullptr;
  calls_.computed_.clear();
}

HostCalls* HostCalls::current() noexcept { return open_calls; }

void HostCalls::on_op_begin(const OpSpan& op) {
  if (!uses_values(*op.info)) return;
  if (open_calls == this && device_.is_cpu()) note_sources(op);
  for_each_argument(*op.info, op.inputs, [&](const at::Tensor& tensor, bool written) {
    if (written || !gives(tensor)) note_use(tensor);
  });
}

void HostCalls::on_op_end(const OpSpan& op) {
  if (!uses_values(*op.info)) return;
  for (const c10::IValue& value : op.outputs) {
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      note_use(tensor);
      if (!sources_.empty() && is_count(tensor)) computed_.push_back({.result = tensor, .sources = sources_});
    });
  }
  sources_.clear();
}

void HostCalls::note_use(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return;
  used_.insert(tensor.storage());
  mixed_ = mixed_ || owned_.contains(storage_of(tensor));
}

// What is read is a count, and so is what it was computed from.
void HostCalls::note_sources(const OpSpan& op) {
  sources_.clear();
  bool are_counts = true;
  for (const c10::IValue& value : op.inputs) {
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (is_wrapped(tensor)) return;
      are_counts = are_counts && is_count(tensor);
      sources_.push_back(tensor);
    });
  }
  if (!are_counts) return sources_.clear();
  if (op.info->host_read != HostRead::always) return;
  for (const at::Tensor& tensor : sources_) note_read(tensor);
}

void HostCalls::note_read(const at::Tensor& tensor) {
  ReadOnHost::instance().add(tensor);
  for (const Computed& one : computed_) {
    if (!one.result.is_same(tensor)) continue;
    for (const at::Tensor& source : one.sources) {
      if (!source.is_same(tensor)) note_read(source);
    }
  }
}

bool HostCalls::is_of_the_host(const at::Tensor& tensor) const {
  if (!tensor.is_cpu()) return false;
  if (!device_.is_cpu() || is_wrapped(tensor)) return true;
  return is_count(tensor) && !used_.contains(storage_of(tensor));
}

bool HostCalls::owns(const OpInfo& op, c10::ArrayRef<c10::IValue> inputs, const StorageSet* computed) const {
  return (reads_ && reads_a_number(op)) || is_of_the_host(op, inputs, computed);
}

bool HostCalls::is_read(const OpInfo& op, c10::ArrayRef<c10::IValue> inputs) const {
  return reads_ && reads_a_number(op) && !is_of_the_host(op, inputs, nullptr);
}

// What only describes memory is nobody's work: of a number that the host assigns by index, torch makes views.
bool HostCalls::is_of_the_host(const OpInfo& op, c10::ArrayRef<c10::IValue> inputs, const StorageSet* computed) const {
  if (!device_.is_cpu() && makes_memory_of_cpu(op, inputs)) return true;
  if (op.is_empty || !uses_values(op) || copied_from_host(op, inputs) != nullptr) return false;
  bool all = true, any = false, known = !device_.is_cpu();
  for (const c10::IValue& value : inputs) {
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      all = all && is_of_the_host(tensor);
      if (is_wrapped(tensor)) return;
      any = true;
      known = known || ReadOnHost::instance().has(tensor) || owned_.contains(storage_of(tensor)) ||
              (computed != nullptr && computed->contains(storage_of(tensor)));
    });
  }
  return all && any && known;
}

void HostCalls::note_own(const OpInfo& op, c10::ArrayRef<c10::IValue> inputs) {
  if (is_read(op, inputs)) return;
  for (const c10::IValue& value : inputs) {
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (!tensor.has_storage() || !owned_.insert(tensor.storage())) return;
      had_any_ = true;
      const QuietScope quiet;
      before_.push_back({.tensor = tensor, .value = tensor.detach().clone()});
    });
  }
}

void HostCalls::note_own_results(c10::ArrayRef<c10::IValue> outputs) {
  for (const c10::IValue& value : outputs) {
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (!tensor.has_storage() || !tensor.is_cpu()) return;
      owned_.insert(tensor.storage());
      had_any_ = true;
    });
  }
}

bool HostCalls::gives(const at::Tensor& tensor) const {
  return open_calls == this && owned_.contains(storage_of(tensor)) && !tensor.requires_grad() && is_number(tensor);
}

HostCalls::Values HostCalls::values() const {
  const QuietScope quiet;
  Values values;
  for (const Before& one : before_) values.push_back(one.tensor.detach().clone());
  return values;
}

void HostCalls::put_back(const Values& values) const {
  const QuietScope quiet;
  for (std::size_t i = 0; i < before_.size(); ++i) {
    before_[i].tensor.detach().copy_(i < values.size() ? values[i] : before_[i].value);
  }
}

}  // namespace pianola::trace
