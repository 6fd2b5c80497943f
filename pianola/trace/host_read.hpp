#pragma once
#include <pianola/trace/op_info.hpp>

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <string>

namespace pianola::trace {

/// Whether this call of the operator needs a tensor's value on the host, so that it cannot be captured.
bool reads_on_host(const OpInfo& op, c10::ArrayRef<c10::IValue> inputs);

/// What the operator needs the host for, for messages: "returns a value of the tensor to the host".
std::string why_host(HostRead kind);

}  // namespace pianola::trace
