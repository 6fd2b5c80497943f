#include <pianola/callable/value_reads.hpp>

#include <pianola/trace/host_read.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace pianola::callable {
namespace {

template <typename Values>
std::vector<at::Tensor> tensors_in(const Values& values) {
  std::vector<at::Tensor> all;
  for (const c10::IValue& value : values) {
    trace::for_each_tensor(value, [&](const at::Tensor& tensor) { all.push_back(tensor); });
  }
  return all;
}

bool is_on_host(const at::Tensor& tensor) { return tensor.is_cpu(); }

}  // namespace

class ValueReads::Observer final : public trace::OpObserver {
 public:
  explicit Observer(OnRead on_read) : on_read_(std::move(on_read)), stream_({this}) {}
  void on_op_begin(const trace::OpSpan& op) override;
  void on_op_end(const trace::OpSpan& op) override;

 private:
  OnRead on_read_;
  struct Running {
    std::uint64_t number;
    bool is_copy;
  };
  std::vector<Running> running_;
  trace::OpStream stream_;
};

ValueReads::ValueReads(OnRead on_read) : observer_(std::make_unique<Observer>(std::move(on_read))) {}
ValueReads::~ValueReads() = default;

void ValueReads::Observer::on_op_begin(const trace::OpSpan& op) {
  const std::vector<at::Tensor> given = tensors_in(op.inputs);
  const bool is_of_device = !given.empty() && !std::all_of(given.begin(), given.end(), &is_on_host);
  const bool reads = trace::reads_on_host(*op.info, op.inputs);
  if (reads || is_of_device) running_.push_back({.number = op.number, .is_copy = !reads});
}

void ValueReads::Observer::on_op_end(const trace::OpSpan& op) {
  const auto running =
      std::find_if(running_.begin(), running_.end(), [&](const Running& one) { return one.number == op.number; });
  if (running == running_.end()) return;
  const bool is_copy = running->is_copy;
  running_.erase(running);
  Read read{.operation = op.info->name,
            .number = {},
            .tensors = tensors_in(op.outputs),
            .is_copy = is_copy,
            .is_backward = op.backward != nullptr};
  if (is_copy && (read.tensors.empty() || !std::all_of(read.tensors.begin(), read.tensors.end(), &is_on_host))) return;
  if (read.tensors.empty() && !op.outputs.empty()) read.number = op.outputs[0];
  const trace::QuietScope quiet;
  on_read_(read);
}

}  // namespace pianola::callable
