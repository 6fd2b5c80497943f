#pragma once
#include <pianola/trace/op_stream.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <unordered_map>
#include <vector>

namespace pianola::callable {

/// Which operation of a run wrote memory last. Operations are counted from 1 as the step called them.
class LastWrites {
 public:
  void on_op_begin(const trace::OpSpan& op);
  void on_op_end(const trace::OpSpan& op);

  /// Operations so far.
  [[nodiscard]] std::size_t operations() const noexcept { return operations_; }
  /// The operation behind which the tensor's memory has what it has now: at least 1, since copies of inputs come with the first.
  /// One that is called by another's kernel for autograd counts as the outer one's end.
  [[nodiscard]] std::size_t last_write_to(const at::Tensor& tensor) const;

 private:
  void note(const at::Tensor& tensor);

  struct Write {
    c10::weak_intrusive_ptr<c10::StorageImpl> memory;  // Note [Identities of memory that may be freed]
    std::size_t operation;
  };
  static constexpr std::size_t kNotOver = static_cast<std::size_t>(-1);

  std::unordered_map<const c10::StorageImpl*, Write> writes_;
  std::vector<Write*> not_over_;  // of operations that run
  std::size_t running_ = 0;
  std::size_t operations_ = 0;
  std::size_t last_unknown_ = 0;  // operation that may have written anywhere
};

}  // namespace pianola::callable
