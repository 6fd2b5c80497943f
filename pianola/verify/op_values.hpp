#pragma once
#include <pianola/trace/op_info.hpp>
#include <pianola/trace/op_stream.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace pianola::verification {

/// What one operation computed, copied at its end.
struct OpValue {
  const trace::OpInfo* info = nullptr;
  std::size_t number = 0;               ///< Of the step's operations, from 1; 0 where they were not counted.
  std::vector<at::Tensor> values = {};  ///< Its results, then what it wrote and does not return.
};

/// Copies what each operation of a run computes, except of those that only allocate or look at memory. In a CUDA capture
/// the copies become part of the graph: each replay makes them anew.
class OpValues final : public trace::OpObserver {
 public:
  void on_op_begin(const trace::OpSpan& op) override;
  void on_op_end(const trace::OpSpan& op) override;

  [[nodiscard]] const std::vector<OpValue>& all() const noexcept { return all_; }
  /// Why there are not all values: memory ran out. Empty where there are.
  [[nodiscard]] const std::string& trouble() const noexcept { return trouble_; }

 private:
  struct Running {
    std::uint64_t key;
    std::size_t number;
    std::vector<at::Tensor> written;
  };
  std::vector<OpValue> all_;
  std::vector<Running> running_;
  std::size_t begun_ = 0;
  std::string trouble_;
};

/// What an operation has written besides its results.
std::vector<at::Tensor> written_arguments(const trace::OpInfo& info, c10::ArrayRef<c10::IValue> inputs);

/// Copies of an operation's results, and of what it wrote where that is no result.
std::vector<at::Tensor> copy_values(c10::ArrayRef<c10::IValue> outputs, const std::vector<at::Tensor>& written);

}  // namespace pianola::verification
