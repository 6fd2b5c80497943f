#pragma once
#include <pianola/graph/run_memory.hpp>
#include <pianola/trace/odd_work.hpp>
#include <pianola/trace/op_trace.hpp>
#include <pianola/trace/weak_tensor.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/flat_hash_map.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pianola::auditing {

// Note [What an observed run holds]
// The audit must not keep alive what the step lets go: what is freed, kept or replaced is what it looks for. So a run
// holds weak references alone: one to all memory that its trace or it itself knows by identity. They also keep the
// identities (addresses of StorageImpl and TensorImpl) from being given to others, within a run and in those that follow,
// which makes those of different runs comparable. See Note [Identities of memory that may be freed].

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
using trace::WeakTensor;

/// A piece of memory by its identity, not held.
struct Memory {
  const void* identity = nullptr;  ///< Of the storage; nullptr: there is none.
  WeakStorage storage{c10::intrusive_ptr<c10::StorageImpl>()};

  static Memory of(const at::Tensor& tensor);
  [[nodiscard]] bool known() const noexcept { return identity != nullptr; }
  /// Whether somebody holds it now.
  [[nodiscard]] bool alive() const noexcept { return known() && storage.use_count() > 0; }
};

/// What the trace does not say of an operation.
struct OpNote {
  const char* caller = nullptr;  ///< Outermost composite around it: "aten::item"; nullptr: it was called itself.
  std::uint32_t module = 0;      ///< In ObservedRun::modules.
  std::uint32_t node = 0;        ///< Of the backward pass, in ObservedRun::nodes; 0: forward.
  bool autocast_cast = false;    ///< A weight is converted by autocast, which keeps the result.
  bool pinned_host = false;      ///< On CUDA: the host memory that is copied, from or to, is pinned.
};

/// Memory that operations of the run use and no operation of it made.
struct OutsideMemory {
  Memory memory;
  const void* data = nullptr;  ///< Its first byte when it was first seen.
  std::size_t bytes = 0;
  c10::Device device = c10::Device(c10::kCPU);
  std::uint32_t first_op = 0;
  const c10::TensorImpl* leaf = nullptr;    ///< The leaf that requires grad which looks at it; nullptr: none does.
  const c10::TensorImpl* tensor = nullptr;  ///< The first tensor that was seen to look at it, if that is a leaf.
  bool requires_grad = false;               ///< What that said then.
  const void* converted = nullptr;          ///< The memory of the parameter that this is a converted copy of.
  bool made_by_host = false;  ///< Allocated in this run, by no operation: a number that became a tensor, compiled code.
  bool foreign = false;       ///< Not allocated by torch: from_blob, NumPy.
  bool alive_at_end = false;
};

/// Values of a small tensor of the CPU that the host wrote, as the first operation that reads them found them.
struct HostValues {
  std::uint32_t op = 0;
  std::uint32_t tensor = 0;  ///< Index among the operation's input records.
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::string bytes = {};
  bool number = false;  ///< A number of the host that torch made a tensor of.
};

/// Memory that an operation of the run made and that is held when the run is over.
struct Survivor {
  Memory memory;
  std::uint32_t op = 0;
};

struct GivenInput {
  Memory memory;
  const void* address = nullptr;
  bool requires_grad = false;
};

struct NamedMemory {
  std::string name;
  Memory memory;
  const void* address = nullptr;
};

struct ResultNote {
  Memory memory;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<std::int64_t> sizes = {};
};

/// The gradient of a leaf at the begin and at the end of a run.
struct GradientNote {
  const c10::TensorImpl* leaf = nullptr;
  Memory leaf_memory, before, after;
  bool watched_before = false;  ///< Whether `before` was looked at: the leaf was known then.
};

/// A generator stood elsewhere than where the step's last draw left it.
struct GeneratorMove {
  std::optional<std::uint32_t> before_op;  ///< The drawing operation; nothing: seen at the end.
  c10::Device device = c10::Device(c10::kCPU);
};

/// One run of the step, as it was seen. See Note [What an observed run holds].
struct ObservedRun {
  OpTrace trace;
  std::vector<OpNote> notes;  ///< One per operation of the trace.
  std::vector<std::string> modules = {""};
  std::vector<std::string> nodes = {""};
  std::vector<OutsideMemory> outside;
  ska::flat_hash_map<const void*, std::uint32_t> outside_at;  ///< By identity.
  std::vector<Survivor> survivors;
  std::vector<WeakStorage> gone;  ///< What its operations made and the run freed: the trace's identities stay its own.
  std::vector<HostValues> host_values;
  std::vector<GeneratorMove> generator_moves;
  std::vector<std::uint32_t> unknown_generators;  ///< Operations that draw from one that nobody named.
  std::vector<GivenInput> inputs;
  std::vector<NamedMemory> names;
  std::vector<ResultNote> results;
  std::vector<bool> kept_results;  ///< Whether the run before's result is still held when this run is over.
  std::vector<GradientNote> gradients;
  std::vector<std::size_t> kept_gradients;  ///< Leaves whose gradient of the run before is still held, and replaced.
  std::vector<std::size_t> kept_survivors;  ///< Of the run before, still held now.
  std::optional<std::uint32_t> anomaly_op;  ///< The first that ran in anomaly mode.
  bool cached_autocast_at_begin = false;
  bool autocast_stays = false;  ///< What autocast keeps in its cache when the run is over stays there.
  bool anomaly_at_begin = false;
  bool threw = false;
  std::optional<graph::SeenMemory> memory;  ///< Of the last run, where it is watched.
  std::optional<trace::OddWork> odd_work;  ///< What no graph can hold; the operations that did it are not in the trace.

  [[nodiscard]] const OutsideMemory* find_outside(const void* identity) const;
  /// Which of the step's arguments lies in this memory; nothing: none does.
  [[nodiscard]] std::optional<std::size_t> input_at(const void* identity, const void* address) const;
  /// The gradient of an input is its caller's: a callable hands it out, and whether there was one before is no hazard.
  [[nodiscard]] bool is_gradient_of_input(const void* identity) const;
  [[nodiscard]] const Survivor* find_survivor(const void* identity) const;
  /// What people call this memory: "model.0.weight"; empty: nothing.
  [[nodiscard]] std::string name_of(const void* identity, const void* address) const;
};

}  // namespace pianola::auditing
