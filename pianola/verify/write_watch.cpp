#include <pianola/verify/write_watch.hpp>

#include <pianola/trace/arguments.hpp>
#include <pianola/trace/step_memory.hpp>
#include <pianola/verify/compare.hpp>
#include <pianola/verify/devices.hpp>

#include <exception>

namespace pianola::verification {

WriteWatch::WriteWatch(State& state, const std::vector<at::Tensor>& own) : state_(state) {
  for (const at::Tensor& tensor : own) {
    if (tensor.defined()) own_.insert(trace::storage_of(tensor));
  }
}

bool WriteWatch::is_own(const at::Tensor& tensor, const trace::OpSpan& op) const {
  const c10::StorageImpl* storage = trace::storage_of(tensor);
  return storage == nullptr || own_.count(storage) != 0 || op.memory->made(tensor);
}

// What is thrown here is lost. The stack is taken in this function itself: its frame is then known for our own.
void WriteWatch::on_op_begin(const trace::OpSpan& op) {
  const std::size_t missing = missing_.size(), draws = draws_.size();
  try {
    look_at(op);
  } catch (const std::exception& error) {
    if (trouble_.empty()) trouble_ = error.what();
  }
  if (missing_.size() == missing && draws_.size() == draws) return;
  const trace::CallSite site = trace::CallSite::here();
  for (std::size_t i = missing; i < missing_.size(); ++i) missing_[i].site = site;
  for (std::size_t i = draws; i < draws_.size(); ++i) draws_[i].site = site;
}

void WriteWatch::look_at(const trace::OpSpan& op) {
  trace::for_each_argument(*op.info, op.inputs,
                           [&](const at::Tensor& tensor, bool written) { look_at(op, tensor, written); });
  if (!op.info->seeded) return;
  for (const c10::IValue& value : op.inputs) {
    if (value.isGenerator() && value.toGenerator().defined() && state_.note_generator(value.toGenerator())) {
      draws_.push_back({.what = {}, .op = op.info->name, .site = {}});
    }
  }
}

// While a stream is captured nothing is written: the graph's replays will.
void WriteWatch::look_at(const trace::OpSpan& op, const at::Tensor& tensor, bool written) {
  const bool leaf = tensor.requires_grad() && tensor.is_leaf();
  if ((!leaf && !written) || is_own(tensor, op) || is_stream_captured(tensor.device())) return;
  if (leaf) state_.note_leaf(tensor);
  if (written && state_.note_write(tensor.storage())) {
    missing_.push_back({.what = shape_text(tensor), .op = op.info->name, .site = {}});
  }
}

std::vector<MissingState> WriteWatch::missing() const {
  std::vector<MissingState> all;
  for (const Seen& seen : missing_) all.push_back({.shape = seen.what, .op = seen.op, .place = seen.site.place()});
  return all;
}

std::vector<std::string> WriteWatch::unlisted_draws() const {
  std::vector<std::string> all;
  for (const Seen& seen : draws_) {
    const std::string place = seen.site.place().text();
    all.push_back(place.empty() ? seen.op : seen.op + ", " + place);
  }
  return all;
}

}  // namespace pianola::verification
