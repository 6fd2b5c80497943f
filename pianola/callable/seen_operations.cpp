#include <pianola/callable/seen_operations.hpp>

#include <pianola/trace/host_read.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace pianola::callable {
namespace {

void add_tensors(const c10::IValue& value, std::vector<at::Tensor>& to) {
  trace::for_each_tensor(value, [&](const at::Tensor& tensor) { to.push_back(tensor); });
}

bool are_on_host(const std::vector<at::Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) { return tensor.is_cpu(); });
}

}  // namespace

class SeenOperations::Observer final : public trace::OpObserver {
 public:
  explicit Observer(OnEnd on_end) : on_end_(std::move(on_end)), stream_({this}) {}

  void on_op_begin(const trace::OpSpan& op) override {
    Operation operation{.name = op.info->name,
                        .inputs = {},
                        .written = {},
                        .outputs = {},
                        .number = {},
                        .reads = trace::reads_on_host(*op.info, op.inputs),
                        .draws = op.info->seeded,
                        .is_backward = op.backward != nullptr};
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      add_tensors(op.inputs[i], operation.inputs);
      if (op.info->writes[i] || op.info->running_statistic[i]) add_tensors(op.inputs[i], operation.written);
    }
    running_.emplace_back(op.number, std::move(operation));
  }

  void on_op_end(const trace::OpSpan& op) override {
    const auto running =
        std::find_if(running_.begin(), running_.end(), [&](const auto& one) { return one.first == op.number; });
    if (running == running_.end()) return;
    Operation operation = std::move(running->second);
    running_.erase(running);
    for (const c10::IValue& output : op.outputs) add_tensors(output, operation.outputs);
    operation.is_copy_to_host =
        !operation.outputs.empty() && are_on_host(operation.outputs) && !are_on_host(operation.inputs);
    if (operation.outputs.empty() && !op.outputs.empty()) operation.number = op.outputs[0];
    const trace::QuietScope quiet;
    on_end_(operation);
  }

 private:
  OnEnd on_end_;
  std::vector<std::pair<std::uint64_t, Operation>> running_;
  trace::OpStream stream_;
};

SeenOperations::SeenOperations(OnEnd on_end) : observer_(std::make_unique<Observer>(std::move(on_end))) {}
SeenOperations::~SeenOperations() = default;

}  // namespace pianola::callable
