#pragma once
#include <pianola/graph/options.hpp>

#include <c10/core/Device.h>

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace pianola::python {

/// @throws UsageError  There is no mode of that name; the text is torch's.
CaptureMode capture_mode(const std::string& name);

/// @throws UsageError  As capture_mode().
CheckMode check_mode(const std::string& name);

/// The pool of that name on the device; empty for none.
GraphPoolRef pool_of(c10::Device device, const std::optional<PoolId>& id);

/// A number of lanes, or "auto".
using Lanes = std::variant<int, std::string>;
/// @throws UsageError  Another word.
int branches_of(const Lanes& lanes);

CaptureOptions make_capture_options(c10::Device device, int warmup, const std::optional<PoolId>& pool,
                                    std::vector<at::Generator> generators, std::vector<at::Tensor> inputs,
                                    const Lanes& branches, const std::optional<ParallelOptions>& parallel,
                                    const std::string& mode, bool restore, bool trace, std::size_t memory_limit,
                                    bool plan_memory, bool accept_capture_path, bool instantiate, bool allow_empty,
                                    std::optional<c10::Stream> stream, const std::string& check,
                                    const std::map<std::string, at::Tensor>& names);

}  // namespace pianola::python
