#include <pianola/callable/live_calls.hpp>

#include <pianola/trace/alias.hpp>
#include <pianola/trace/wrapped_number.hpp>

namespace pianola::callable {
namespace {

bool is_number(const c10::IValue& value) {
  if (value.isTensor()) return trace::wrapped_number(value).has_value();
  return !value.isTensorList();
}

}  // namespace

void LiveCalls::on_op_begin(const trace::OpSpan& op) {
  if (differ_ || op.around != 0 || only_describes(*op.info) || own_.owns(*op.info, op.inputs)) return;
  if (next_ == all_.size() || all_[next_].op != op.info) {
    differ_ = true;
    return;
  }
  HostPartCall& call = all_[next_++];
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    if (is_number(call.inputs[i]) && is_number(op.inputs[i])) call.inputs[i] = trace::alias_values(op.inputs[i]);
  }
}

}  // namespace pianola::callable
