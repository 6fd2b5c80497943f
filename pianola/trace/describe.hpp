#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

namespace pianola::trace {

// How messages speak of tensors.

/// "Float [16, 16]".
std::string type_of(c10::ScalarType dtype, c10::IntArrayRef sizes);
inline std::string type_of(const at::Tensor& tensor) { return type_of(tensor.scalar_type(), tensor.sizes()); }
/// "a Float tensor of shape [16, 16]".
std::string describe(const at::Tensor& tensor);
/// "a Float parameter 'fc.weight' of shape [16, 16]"; without a name, that which autograd knows, or none.
std::string describe_parameter(const at::Tensor& parameter, std::string_view name = {});

}  // namespace pianola::trace
