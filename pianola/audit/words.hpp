#pragma once
#include <pianola/audit/observed_run.hpp>
#include <pianola/audit/observed_runs.hpp>
#include <pianola/trace/op_trace.hpp>

#include <string>
#include <vector>

namespace pianola::auditing {

/// "Float [8, 16]"
[[nodiscard]] std::string described(const OpTrace& trace, const TensorRecord& tensor);
/// "[8, 16]"
[[nodiscard]] std::string listed(std::span<const std::int64_t> numbers);
/// "0.1", "true"
[[nodiscard]] std::string written_out(const ScalarRecord& number);
/// "[1, 2.5]"; shortened where there are many.
[[nodiscard]] std::string written_out(const HostValues& values);
/// What the operator calls it: "alpha".
[[nodiscard]] std::string argument_name(const OpRecord& op, int argument);
/// "0x7f12"
[[nodiscard]] std::string address(const void* pointer);
/// Where an operation is: "aten::relu at step.py:10"; the operation alone where no line is known.
[[nodiscard]] std::string operation_at(const ObservedRuns& runs, OpAt at);
/// "iteration 2"
[[nodiscard]] std::string iteration(std::size_t run);
/// The tensor of an operation as people call it: "'cache'", "the gradient of 'w'", "input 0", "a Float tensor of shape [2]".
[[nodiscard]] std::string tensor_words(const ObservedRuns& runs, OpAt at, const TensorRecord& tensor);
/// "1 time", "3 times"
[[nodiscard]] std::string counted(std::size_t count, const char* one, const char* many);

}  // namespace pianola::auditing
