#pragma once
#include <pianola/graph/options.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace torch::jit {
struct Module;
}

namespace pianola::program {

/// A tensor to make, as the command line names it.
struct InputShape {
  /// "8x16": float32. "8x16:float16", "8x16:bfloat16", "8x16:float64". "8x16:int64<100": whole numbers from 0 to 99.
  /// "1": one number in a dimension of its own. @throws UsageError  It is none of these.
  [[nodiscard]] static InputShape parse(const std::string& text);

  std::vector<std::int64_t> sizes;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::int64_t bound = 10;  ///< Of whole numbers: they are smaller.
};

/// A TorchScript module from a file, with inputs to call it with.
class ScriptModule {
 public:
  /// @param train  Run it in training mode, backward included.
  /// @throws UsageError  The file cannot be read, or is no TorchScript module.
  ScriptModule(const std::filesystem::path& file, c10::Device device, bool train);
  ~ScriptModule();

  /// Random, but the same for equal shapes. @param shapes  As InputShape::parse() reads them. @throws UsageError  As it.
  [[nodiscard]] std::vector<at::Tensor> make_inputs(const std::vector<std::string>& shapes) const;
  /// Forward; when training, backward of the sum of all floating-point results too, with gradients made anew. Returns the
  /// tensors of the result.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs);
  /// Runs until TorchScript's executor has settled on the code that it runs from then on.
  /// @throws UsageError  The module does not run with these inputs.
  void settle(const std::vector<at::Tensor>& inputs);

  /// Parameters and buffers by their path.
  [[nodiscard]] std::vector<NamedTensor> state() const;
  [[nodiscard]] std::string name() const { return name_; }

 private:
  std::unique_ptr<torch::jit::Module> module_;
  c10::Device device_;
  bool train_;
  std::string name_;
};

}  // namespace pianola::program
