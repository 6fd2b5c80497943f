#pragma once
#include <pianola/trace/op_trace.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace pianola::graph {

/// Of which part of a step an operation is.
struct StepPart {
  bool backward = false;
  bool optimizer = false;
  bool ahead = false;       ///< Of the end of the last backward pass, or there is none.
  std::int32_t model = -1;  ///< Number of the model that it runs in, or that its forward operation ran in; -1: none.
  std::int32_t layer = -1;  ///< The same of layers.
};

/// The parts of an observed step, by user scopes.
class StepParts {
 public:
  explicit StepParts(const OpTrace& trace);

  /// Of its number in the trace; of none where there is no such operation.
  [[nodiscard]] const StepPart& of(std::size_t operation) const {
    static const StepPart none;
    return operation < parts_.size() ? parts_[operation] : none;
  }
  [[nodiscard]] std::size_t models() const noexcept { return models_.size(); }
  [[nodiscard]] std::size_t layers() const noexcept { return layers_.size(); }
  [[nodiscard]] bool has_optimizer() const noexcept { return has_optimizer_; }

 private:
  std::vector<StepPart> parts_;  // by operation
  std::vector<std::string_view> models_, layers_;
  bool has_optimizer_ = false;
};

}  // namespace pianola::graph
