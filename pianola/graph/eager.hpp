#pragma once
#include <pianola/core/export.hpp>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace pianola {

/// A function that a graphed step calls, and no graph holds. Made by eager().
class PIANOLA_API EagerPart {
 public:
  using Function = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

  EagerPart(Function function, std::string name);

  /// In a step that is warmed up or captured on this thread: a part of it that replays run by themselves, between the graph's
  /// operations before the call and those behind it. Gradients go through it. Elsewhere it calls the function.
  ///
  /// @return  Tensors of the same shapes, types and devices in each call.
  /// @throws UsageError  The function writes an input in place, or differentiates a tensor that it was not given. In a replay: it
  ///                     returns other tensors than when the step was captured, or gives gradients to others; what the step does
  ///                     before it has run then.
  /// @throws CaptureError  The step is recorded, and was not warmed up before or called other parts then.
  /// What the function throws comes out, of replays too.
  std::vector<at::Tensor> operator()(std::vector<at::Tensor> inputs) const;

 private:
  Function function_;
  std::string name_;
  std::int64_t number_;
};

/// Keeps a part of a step eager that has to run on the host: it reads values, logs, or calls what cannot be captured.
/// @param name  For messages.
PIANOLA_API EagerPart eager(EagerPart::Function function, std::string name = "a part");

}  // namespace pianola
