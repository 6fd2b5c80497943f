#pragma once
#include <pianola/trace/op_stream.hpp>

#include <c10/core/ScalarType.h>

#include <vector>

namespace pianola::callable {

/// The operations of a backward pass and the types of what they read: what autocast could have changed in it.
class BackwardLog final : public trace::OpObserver {
 public:
  [[nodiscard]] trace::OpInterest interest() const override { return {.outputs = false}; }
  void on_op_begin(const trace::OpSpan& op) override;
  friend bool operator==(const BackwardLog& a, const BackwardLog& b) {
    return a.ops_ == b.ops_ && a.types_ == b.types_;
  }

 private:
  std::vector<const trace::OpInfo*> ops_;
  std::vector<c10::ScalarType> types_;
};

}  // namespace pianola::callable
