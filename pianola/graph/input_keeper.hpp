#pragma once
#include <pianola/trace/op_stream.hpp>

#include <c10/core/Storage.h>
#include <c10/util/flat_hash_map.h>

#include <cstddef>
#include <functional>
#include <vector>

namespace pianola::graph {

/// Keeps alive the memory from outside the step that its operations read or write, so that no replay ever touches freed
/// memory. `guarded(address)` tells memory that is looked after elsewhere (results in the same pool): it is not kept.
class InputKeeper final : public trace::OpObserver {
 public:
  using Guarded = std::function<bool(const void* address)>;
  explicit InputKeeper(Guarded guarded = {}) : guarded_(std::move(guarded)) {}

  void on_op_begin(const trace::OpSpan& op) override;

  [[nodiscard]] std::vector<c10::Storage> take() noexcept { return std::move(kept_); }

 private:
  Guarded guarded_;
  ska::flat_hash_set<const c10::StorageImpl*> seen_;
  std::vector<c10::Storage> kept_;
};

std::size_t bytes_of(const std::vector<c10::Storage>& storages);

}  // namespace pianola::graph
