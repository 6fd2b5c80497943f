#include <pianola/verify/narrow.hpp>

#include <pianola/core/error.hpp>
#include <pianola/graph/copy_into.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/graph/tape/tape.hpp>
#include <pianola/trace/tensors_of.hpp>
#include <pianola/trace/trace_recorder.hpp>
#include <pianola/verify/bits.hpp>
#include <pianola/verify/dependence.hpp>
#include <pianola/verify/devices.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace pianola::verification {
namespace {

void add_storages(trace::StorageSet& set, const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.has_storage()) set.insert(tensor.storage());
  }
}

bool same_kind(const at::Tensor& one, const at::Tensor& other) {
  return one.defined() && other.defined() && one.sizes() == other.sizes() && one.scalar_type() == other.scalar_type();
}

// Operators whose result 1, the sums for the backward, is padded to a multiple of 32 with what was there (torch 2.11,
// kAlignLSE).
constexpr std::array<std::string_view, 2> kPaddedResult = {"aten::_scaled_dot_product_efficient_attention",
                                                           "aten::_efficient_attention_forward"};

// Seeds and scratch that an operation hands to its backward are not the same in a capture.
bool says_something(const OpValue& value, std::size_t index) {
  const std::string& name = value.info->schema().name();
  if (index == 1 && std::ranges::find(kPaddedResult, name) != kPaddedResult.end()) return false;
  const at::Tensor& tensor = value.values[index];
  if (tensor.is_floating_point() || tensor.is_complex()) return true;
  return !value.info->seeded && tensor.scalar_type() != at::kByte;
}

void check_alike(const std::vector<at::Tensor>& first, const std::vector<at::Tensor>& later, int step) {
  bool same = first.size() == later.size();
  for (std::size_t i = 0; same && i < first.size(); ++i) {
    same = first[i].defined() ? same_kind(first[i], later[i]) : !later[i].defined();
  }
  if (!same) throw UsageError({.what = fmt::format("step {} has inputs of other shapes than step 1", step)});
}

// On CUDA the copies of values are captured with the operations; on the tape each replay shows its operations.
void capture(Graph& graph, OpValues& values, Runner& runner, const std::vector<at::Tensor>& inputs, int warmup) {
  runner.rewind(Side::eager);
  int calls = 0;
  const auto step = [&] {
    std::optional<trace::OpStream> watching;
    if (graph.device().is_cuda() && calls == warmup) watching.emplace(std::vector<trace::OpObserver*>{&values});
    ++calls;
    (void)runner.call(Side::eager, inputs);
  };
  graph.capture(step, {.warmup = warmup, .generators = runner.options().generators, .accept_capture_path = true});
}

std::string what_differs(const OpValue& value, std::size_t index) {
  const auto& returns = value.info->schema().returns();
  const bool is_list = returns.size() == 1 && returns[0].type()->kind() == c10::TypeKind::ListType;
  const std::string which = is_list || index < returns.size() ? fmt::format("its result {} differs", index)
                                                              : "a tensor that it writes differs";
  return which + ", its inputs are the same";
}

}  // namespace

ObservedStep observe(Runner& runner, int step, const ObserveOptions& options) {
  ObservedStep observed;
  TraceRecorder recorder({.call_sites = options.sites});
  std::vector<trace::OpObserver*> watching = {&recorder};
  if (options.values) watching.push_back(&observed.values);
  add_storages(observed.own, runner.state().gradients());
  observed.outcome = runner.run(Side::eager, step, watching);
  add_storages(observed.own, observed.outcome.inputs);
  observed.trace = recorder.take();
  for (const Pair& pair : runner.pairs({}, observed.outcome)) {
    const auto writer =
        pair.role == "generator" ? first_draw(observed.trace) : first_writer(observed.trace, pair.graphed);
    if (writer) observed.writers[pair.name] = *writer;
  }
  return observed;
}

DifferenceOrigin describe(const OpTrace& trace, std::size_t op, std::string what) {
  const OpRecord& record = trace.ops()[op];
  return {.op = trace.name(record),
          .number = op + 1,
          .module = trace.scope(record),
          .place = trace.source(record),
          .what = std::move(what)};
}

std::optional<Parting> where_they_part(const std::vector<OpValue>& one, const std::vector<OpValue>& other) {
  struct Compared {
    std::size_t op;
    std::size_t value;
  };
  BitCheck check;
  std::vector<Compared> compared;
  std::optional<Parting> other_operation;
  for (std::size_t i = 0; i < std::min(one.size(), other.size()) && !other_operation; ++i) {
    // Autograd adds two gradients in place where nobody else holds the first; a tape does.
    if (!one[i].info->computes_as(*other[i].info)) {
      other_operation = {.op = one[i].number - 1,
                         .what = fmt::format("the other run calls {} here", other[i].info->name)};
      break;
    }
    for (std::size_t k = 0; k < std::min(one[i].values.size(), other[i].values.size()); ++k) {
      if (!same_kind(one[i].values[k], other[i].values[k]) || !says_something(one[i], k)) continue;
      check.add(one[i].values[k], other[i].values[k]);
      compared.push_back({.op = i, .value = k});
    }
  }
  const std::vector<bool> equal = check.take();
  const auto first = static_cast<std::size_t>(std::find(equal.begin(), equal.end(), false) - equal.begin());
  if (first == equal.size()) return other_operation;
  const OpValue& culprit = one[compared[first].op];
  return Parting{.op = culprit.number - 1, .what = what_differs(culprit, compared[first].value)};
}

std::vector<OpValue> values_of_a_capture(Runner& runner, c10::Device device, int step,
                                         const std::function<void()>& go_to) {
  const std::vector<at::Tensor> inputs = runner.hand_out(1);
  const std::vector<at::Tensor> wanted = runner.hand_out(step);
  check_alike(inputs, wanted, step);
  Graph graph(device);
  OpValues captured;
  try {
    capture(graph, captured, runner, inputs, 0);
  } catch (const CaptureError&) {  // it may be the first use of a library on the capture's stream
    captured = {};
    capture(graph, captured, runner, inputs, 1);
  }
  if (!captured.trouble().empty()) throw Error({.what = captured.trouble()});
  go_to();
  graph::copy_into(inputs, wanted);
  std::vector<OpValue> replayed = captured.all();
  {
    const graph::ReplayWatch watch([&](const graph::TapeOp& op) {
      const auto written = op.writes_results ? std::vector<at::Tensor>() : written_arguments(*op.info, op.inputs);
      replayed.push_back({.info = op.info, .values = copy_values(op.outputs, written)});
    });
    graph.replay();
  }
  wait_for(cuda_devices_in_use());
  return replayed;
}

}  // namespace pianola::verification
