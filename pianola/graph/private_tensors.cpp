#include <pianola/graph/private_tensors.hpp>

#include <c10/util/flat_hash_map.h>

#include <mutex>
#include <vector>

namespace pianola::graph {
namespace {

struct OwnerRegistry {
  std::mutex mutex;
  ska::flat_hash_map<const c10::TensorImpl*, PrivateTensors::Owner> owners;
};

// Never destroyed: optimizers may go at process exit, in any order.
OwnerRegistry& owner_registry() {
  static auto* const all = new OwnerRegistry;
  return *all;
}

struct Declaration {
  ~Declaration() {
    OwnerRegistry& all = owner_registry();
    const std::lock_guard lock(all.mutex);
    for (const c10::TensorImpl* tensor : tensors) all.owners.erase(tensor);
  }
  std::vector<const c10::TensorImpl*> tensors;
};

}  // namespace

PrivateTensors::PrivateTensors(std::span<const at::Tensor> tensors) {
  const auto declaration = std::make_shared<Declaration>();
  OwnerRegistry& all = owner_registry();
  const std::lock_guard lock(all.mutex);
  for (const at::Tensor& tensor : tensors) {
    declaration->tensors.push_back(tensor.unsafeGetTensorImpl());
    all.owners[tensor.unsafeGetTensorImpl()] = Owner(declaration);
  }
  declared_ = declaration;
}

PrivateTensors::Owner PrivateTensors::owner_of(const at::Tensor& tensor) {
  OwnerRegistry& all = owner_registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.owners.find(tensor.unsafeGetTensorImpl());
  return found == all.owners.end() ? Owner() : found->second;
}

}  // namespace pianola::graph
