#pragma once
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/flat_hash_map.h>
#include <c10/util/intrusive_ptr.h>

#include <vector>

namespace pianola::trace {

// Note [Identities of memory that may be freed]
// What a storage is known by is the address of its StorageImpl, and the next one that is made may lie where a freed one
// lay: mostly it does. So who remembers an identity longer than the memory's owner may live has a weak reference beside
// it. The bytes are freed as ever; the StorageImpl, about a hundred bytes, stays, and its address is nobody else's.

/// Storages by identity. Holds none alive; what a freed one was known by is not given to another while the set has it.
class StorageSet {
 public:
  /// @return  Whether it is new.
  bool insert(const c10::Storage& storage) {
    if (!identities_.insert(storage.unsafeGetStorageImpl()).second) return false;
    references_.push_back(storage.getWeakStorageImpl());
    return true;
  }

  [[nodiscard]] bool empty() const { return identities_.empty(); }
  [[nodiscard]] bool contains(const c10::StorageImpl* storage) const { return identities_.count(storage) != 0; }

  /// Calls `visit(reference)` for each that somebody holds.
  template <typename Visit>
  void for_each_alive(const Visit& visit) const {
    for (const c10::weak_intrusive_ptr<c10::StorageImpl>& reference : references_) {
      if (!reference.expired()) visit(reference);
    }
  }

  void clear() {
    identities_.clear();
    references_.clear();
  }

 private:
  ska::flat_hash_set<const c10::StorageImpl*> identities_;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> references_;
};

}  // namespace pianola::trace
