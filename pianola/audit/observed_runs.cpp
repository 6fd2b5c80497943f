#include <pianola/audit/observed_runs.hpp>

#include <pianola/trace/call_site.hpp>
#include <pianola/trace/op_info.hpp>

#include <algorithm>
#include <cctype>

namespace pianola::auditing {
namespace {

// Of one operation: results tell best, since numbers and indices may lie elsewhere.
std::optional<c10::Device> device_of(const ObservedRun& run, const OpRecord& op) {
  const auto tensors = op.outputs > 0 ? run.trace.outputs(op) : run.trace.inputs(op);
  if (op.info->is_view || op.info->is_empty || tensors.empty()) return std::nullopt;
  return tensors.front().device;
}

}  // namespace

c10::Device busiest_device(std::span<const ObservedRun> runs) {
  std::vector<std::pair<c10::Device, std::size_t>> counts;
  for (const ObservedRun& run : runs) {
    for (const OpRecord& op : run.trace.ops()) {
      const auto device = device_of(run, op);
      if (!device) continue;
      const auto known = std::find_if(counts.begin(), counts.end(), [&](const auto& c) { return c.first == *device; });
      known == counts.end() ? counts.emplace_back(*device, 1) : (++known->second, *known);
    }
  }
  const auto most =
      std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most != counts.end()) return most->first;
  for (const ObservedRun& run : runs) {  // nothing computes: where what is looked at lies
    for (const OpRecord& op : run.trace.ops()) {
      if (op.inputs > 0) return run.trace.inputs(op).front().device;
    }
  }
  return c10::Device(c10::kCPU);
}

ObservedRuns::ObservedRuns(std::vector<ObservedRun> runs, c10::Device device, bool warmed_up)
    : runs_(std::move(runs)), device_(device) {
  std::vector<std::size_t> whole;
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    if (!runs_[i].threw) whole.push_back(i);
  }
  const auto pair = [&](std::size_t a, std::size_t b) {
    return RunPair{.a = a, .b = b, .alignment = align(runs_[a].trace, runs_[b].trace)};
  };
  for (std::size_t i = 1; i < whole.size(); ++i) pairs_.push_back(pair(whole[i - 1], whole[i]));
  const auto agrees = [](const RunPair& of) { return of.alignment.complete && !of.alignment.first_change; };
  const bool only_first_differs =
      !warmed_up && pairs_.size() > 1 && !agrees(pairs_[0]) && std::all_of(pairs_.begin() + 1, pairs_.end(), agrees);
  if (only_first_differs) {
    pairs_.erase(pairs_.begin());
    whole.erase(whole.begin());
  }
  for (std::size_t i = 2; i < whole.size(); ++i) pairs_.push_back(pair(whole[0], whole[i]));
}

std::span<const TensorRecord> ObservedRuns::inputs(OpAt at) const { return runs_[at.run].trace.inputs(op(at)); }

std::span<const TensorRecord> ObservedRuns::outputs(OpAt at) const { return runs_[at.run].trace.outputs(op(at)); }

std::string ObservedRuns::op_name(OpAt at) const {
  const char* caller = note(at).caller;
  return caller != nullptr ? std::string(caller) : op(at).info->schema().name();
}

std::string ObservedRuns::module(OpAt at) const {
  const ObservedRun& run = runs_[at.run];
  const OpRecord* record = &op(at);
  if (const OpRecord* forward = run.trace.forward_of(*record); forward != nullptr) record = forward;
  const auto index = static_cast<std::size_t>(record - run.trace.ops().data());
  const std::string& module = run.modules[run.notes[index].module];
  return module.empty() ? run.trace.scope(*record) : module;
}

// torch numbers the overloads of its own nodes ("ProdBackward0"); those of the user's functions have the user's name.
bool ObservedRuns::in_custom_backward(OpAt at) const {
  const std::string& node = runs_[at.run].nodes[note(at).node];
  return !node.empty() && std::isdigit(static_cast<unsigned char>(node.back())) == 0;
}

SourcePlace ObservedRuns::own_place(OpAt at) const {
  const trace::CallSite* site = runs_[at.run].trace.site(op(at));
  return site == nullptr ? SourcePlace() : site->place();
}

SourcePlace ObservedRuns::place(OpAt at) const {
  const auto [entry, is_new] = places_.try_emplace({at.run, at.op});
  if (is_new) entry->second = in_custom_backward(at) ? own_place(at) : runs_[at.run].trace.source(op(at));
  return entry->second;
}

const ObservedRuns::Frames& ObservedRuns::frames(OpAt at) const {
  const auto [entry, is_new] = frames_.try_emplace({at.run, at.op});
  if (!is_new) return entry->second;
  const trace::CallSite* site = runs_[at.run].trace.site(op(at));
  if (site == nullptr) return entry->second;
  entry->second.script = site->script_frames();
  if (entry->second.script.empty()) entry->second.native = site->native_frames();
  return entry->second;
}

bool ObservedRuns::called_from(OpAt at, std::string_view python_file, std::string_view function) const {
  const Frames& all = frames(at);
  const auto in_file = [&](const SourcePlace& frame) { return frame.file.find(python_file) != std::string::npos; };
  const auto in_function = [&](const SourcePlace& frame) { return frame.function.find(function) != std::string::npos; };
  return std::any_of(all.script.begin(), all.script.end(), in_file) ||
         (!function.empty() && std::any_of(all.native.begin(), all.native.end(), in_function));
}

// Beside optimizers, torch.optim has averages of models, which read and write tensors of their own.
bool ObservedRuns::called_by_optimizer(OpAt at) const {
  return called_from(at, "torch/optim/", "torch::optim::") && !called_from(at, "torch/optim/swa_utils.py", "");
}

Finding ObservedRuns::finding(std::string_view rule, OpAt at) const {
  Finding finding = Finding::of(rule);
  finding.op = op_name(at);
  finding.module = module(at);
  finding.place = place(at);
  finding.iteration = static_cast<int>(at.run) + 1;
  return finding;
}

}  // namespace pianola::auditing
