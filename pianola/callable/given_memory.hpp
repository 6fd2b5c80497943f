#pragma once
#include <pianola/core/error.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/operation_log.hpp>
#include <pianola/trace/storage_set.hpp>
#include <pianola/trace/weak_tensor.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pianola::callable {

// Note [Tensors that are given memory of a run]
// `q.data = y`, `q.set_(x)`: a tensor that outlives the call is given memory that the call made, or that of an input. References tell where no
// history may hold such memory as well (Note [What a history holds]); where one may, the tensor itself tells: one that an earlier run
// used, or whose data its Python set, and that has memory of the recorded run after it, can have got it there only. No replay would give it
// anything, so that after calls of several signatures it would lie in the graph that was captured last.

/// Notes the tensors that the operations of a run are given. Keeps none alive.
class GivenTensors final : public trace::OpObserver {
 public:
  struct One {
    trace::WeakTensor tensor;
    std::uint64_t operation;  // the first that was given it; OpSpan::number
  };

  [[nodiscard]] trace::OpInterest interest() const override { return {.outputs = false}; }
  void on_op_begin(const trace::OpSpan& op) override;

  [[nodiscard]] const std::vector<One>& all() const noexcept { return all_; }

 private:
  ska::flat_hash_set<const c10::TensorImpl*> seen_;
  std::vector<One> all_;
};

/// A tensor that was there before a run.
struct EarlierTensor {
  trace::WeakTensor tensor;
  std::string place = {};  ///< Where code sets its data, if that is known.
};

/// A run, and its memory.
struct RunWithMemory {
  std::span<const at::Tensor> inputs;
  std::function<bool(const c10::StorageImpl*)> made;  ///< Gradients excepted, and what replays hand out.
  const GivenTensors& given;
  const trace::OperationLog& log;
};

/// A tensor of an earlier run that has memory of this one, if there is one.
/// @param before  What the earlier run used, or gave memory.
[[nodiscard]] std::optional<Diagnosis> refuse_given_memory(std::span<const EarlierTensor> before,
                                                           const RunWithMemory& run);

}  // namespace pianola::callable
