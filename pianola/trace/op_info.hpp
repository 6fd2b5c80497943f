#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/DispatchKey.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace at {
struct RecordFunction;
}

namespace pianola::trace {

/// What an operator may do to the host, decided from its schema; the inputs of a call decide the rest (host_read.hpp).
enum class HostRead : std::uint8_t {
  never,
  always,          ///< Returns a value of the tensor to the host: item, equal.
  dynamic_shape,   ///< The shape of the result is a value of the tensor: nonzero, masked_select, unique.
  bool_index,      ///< As dynamic_shape, but only where an index is a mask: index.
  bool_index_put,  ///< As bool_index, but not where it is one mask and one number, which fills: index_put_.
  repeats_tensor,  ///< repeat_interleave without an output size.
};

/// Facts about one operator that do not change from call to call, looked up once per process.
struct OpInfo {
  c10::OperatorHandle handle;
  std::string name;          ///< "aten::mm"; with the overload where there is one, "aten::add.Tensor".
  std::vector<bool> writes;  ///< Per argument: whether the call writes into it.
  std::vector<bool>
      running_statistic;       ///< Per argument: written without a mark in the schema; see writes_statistics().
  int training_argument = -1;  ///< Index of the flag that turns that on; -1: always on.
  bool is_view = false;        ///< Only re-describes memory of an input: nothing to replay.
  bool is_empty = false;       ///< Only allocates: nothing to replay.
  bool adopts_memory = false;  ///< Its result looks at memory that exists, but is no input tensor's: set_.
  bool seeded = false;         ///< May draw random numbers (tag nondeterministic_seeded, or a generator).
  HostRead host_read = HostRead::never;
  bool collective = false;  ///< Communicates with other processes. See Note [Communication].
  /// On the CPU it is done only when the host's code waits for it. See Note [Collectives that are observed].
  bool done_by_wait = false;

  [[nodiscard]] const c10::FunctionSchema& schema() const { return handle.schema(); }
  /// Whether both compute the same, one of them perhaps in place: add and add_. Overloads are not told apart.
  [[nodiscard]] bool computes_as(const OpInfo& other) const;
  [[nodiscard]] bool writes_anything() const;
  /// Whether this call writes its running statistics. See Note [Writes that no schema tells].
  [[nodiscard]] bool writes_statistics(c10::ArrayRef<c10::IValue> inputs) const;

  /// Whether a call with these inputs, made now by this thread, only leads to calls of other operators: composites, and
  /// operators that autocast wraps. The operators below are then what is recorded. See Note [Which spans are operations].
  [[nodiscard]] bool transparent_now(c10::ArrayRef<c10::IValue> inputs) const;
  /// Whether a call with these inputs, made now by this thread, runs a kernel for autograd around the one that computes.
  /// See Note [Calls of a kernel for autograd].
  [[nodiscard]] bool differentiates_now(c10::ArrayRef<c10::IValue> inputs) const;

  explicit OpInfo(c10::OperatorHandle handle);

 private:
  bool composite_ = false;
  bool cpu_kernel_ = false;
  bool cuda_kernel_ = false;
  bool autocast_cpu_ = false;
  bool autocast_cuda_ = false;
  bool autograd_kernel_ = false;
  bool pools_itself_ = false;  ///< max_pool1d: see pools_without_gradient()
};

/// The operator of a span; nullptr where the span is no operator call (engine spans, user scopes).
/// Threads: any. Lives until the process ends.
const OpInfo* find_op(const at::RecordFunction& span);

/// The same, by its handle.
const OpInfo& info_of(const c10::OperatorHandle& handle);

/// Every operator (without overload) that the facts above are looked up for by name: a test asks torch for each.
std::vector<std::string_view> names_in_tables();

}  // namespace pianola::trace
