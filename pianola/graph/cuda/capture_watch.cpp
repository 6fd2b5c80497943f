#include <pianola/graph/cuda/capture_watch.hpp>

#include <pianola/trace/op_info.hpp>

namespace pianola::graph {

void CaptureWatch::on_op_begin(const trace::OpSpan& op) {
  ++operations_;
  if (offender_) return;
  if (broken()) {
    offender_ = OffendingOp::note(op, operations_);
    between_ = true;
    return;
  }
  last_op_ = op.info;
}

void CaptureWatch::on_op_end(const trace::OpSpan& op) {
  if (offender_) return;
  if (broken()) {
    offender_ = OffendingOp::note(op, operations_);
  } else if (op.outputs.empty() && !op.info->schema().returns().empty()) {
    last_throw_ = OffendingOp::note(op, operations_);
  }
}

void CaptureWatch::on_inner_end(const trace::OpSpan& around, const char* inner) {
  if (!offender_ && broken()) offender_ = OffendingOp::note(around, operations_, inner);
}

}  // namespace pianola::graph
