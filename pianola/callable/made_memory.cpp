#include <pianola/callable/made_memory.hpp>

#include <pianola/trace/references.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <algorithm>
#include <mutex>
#include <set>

namespace pianola::callable {
namespace {

// Of the process.
struct Everything {
  std::mutex mutex;
  std::vector<std::weak_ptr<MadeMemory>> all;

  static Everything& instance() {
    static Everything everything;
    return everything;
  }
  std::vector<std::shared_ptr<MadeMemory>> alive() {
    const std::lock_guard lock(mutex);
    std::erase_if(all, [](const auto& one) { return one.expired(); });
    std::vector<std::shared_ptr<MadeMemory>> result;
    for (const auto& one : all) {
      if (auto memory = one.lock()) result.push_back(std::move(memory));
    }
    return result;
  }
};

}  // namespace

MadeMemory::One::One(c10::Storage memory) : storage(std::move(memory)), references(count()) {}

std::size_t MadeMemory::One::count() const { return trace::references_to(storage); }

std::shared_ptr<MadeMemory> MadeMemory::of(const std::vector<at::Tensor>& tensors) {
  auto made = std::make_shared<MadeMemory>();
  std::set<const c10::StorageImpl*> known;  // gradients of a recurrent layer are views of one buffer
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !tensor.has_storage()) continue;
    if (known.insert(trace::storage_of(tensor)).second) made->all_.emplace_back(tensor.storage());
  }
  Everything& everything = Everything::instance();
  const std::lock_guard lock(everything.mutex);
  everything.all.push_back(made);
  return made;
}

bool MadeMemory::is_held() {
  bool is_held = false;
  for (One& one : all_) {
    const auto uses = static_cast<std::size_t>(one.storage.use_count());  // Python's own reference among them, perhaps
    std::size_t known = one.references.load(std::memory_order_relaxed);
    if (uses == known) [[likely]]
      continue;
    const std::size_t now = one.count();
    if (now < known) one.references.compare_exchange_strong(known, now, std::memory_order_relaxed);
    is_held = is_held || now > known;
  }
  return is_held;
}

std::vector<std::size_t> MadeMemory::counts() const {
  std::vector<std::size_t> result;
  for (const One& one : all_) result.push_back(one.count());
  return result;
}

MadeMemory::Capture::Capture() {
  for (std::shared_ptr<MadeMemory>& memory : Everything::instance().alive()) {
    std::vector<std::size_t> counts = memory->counts();
    before_.emplace_back(std::move(memory), std::move(counts));
  }
}

MadeMemory::References MadeMemory::Capture::finish() {
  References result;
  for (const auto& [memory, before] : before_) {
    for (std::size_t i = 0; i < before.size(); ++i) {
      One& one = memory->all_[i];
      const std::size_t now = one.count();
      if (now <= before[i]) continue;
      one.references += now - before[i];
      result.added_.push_back({.memory = memory, .index = i, .count = now - before[i]});
    }
  }
  before_.clear();
  return result;
}

MadeMemory::References::~References() {
  for (const auto& [weak, index, count] : added_) {
    const auto memory = weak.lock();
    if (memory == nullptr) continue;
    std::atomic<std::size_t>& references = memory->all_[index].references;
    std::size_t known = references.load();
    while (!references.compare_exchange_weak(known, known - std::min(known, count))) {
    }
  }
}

}  // namespace pianola::callable
