#include <pianola/audit/checks/checks.hpp>

#include <pianola/audit/producers.hpp>
#include <pianola/audit/words.hpp>
#include <pianola/trace/op_info.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

namespace pianola::auditing {
namespace {

// Operations on tensors of the CPU that compute nothing, or whose result shows elsewhere.
constexpr std::array<std::string_view, 12> kNoWork = {
    "aten::lift_fresh",  "aten::detach_",    "aten::set_",      "aten::_to_copy", "aten::copy_", "aten::record_stream",
    "aten::_pin_memory", "aten::pin_memory", "aten::is_pinned", "aten::resize_",  "aten::fill_", "aten::zero_"};

bool is_cpu(const TensorRecord& tensor) { return tensor.device.is_cpu(); }

class DeviceCheck {
 public:
  DeviceCheck(const ObservedRuns& runs, std::size_t run) : runs_(runs), run_(run) {}

  Findings findings() {
    for (std::size_t op = 0; op < runs_.run(run_).notes.size(); ++op) look_at({run_, op});
    return std::move(findings_);
  }

 private:
  [[nodiscard]] const OpTrace& trace() const { return runs_.run(run_).trace; }

  void look_at(OpAt at) {
    if (uses_other_device(at)) return;
    if (!runs_.on_cuda()) return;
    if (runs_.op(at).info->schema().name() == "aten::record_stream") {
      add("PG706", at, "record_stream() is called in the step");
    }
    look_at_pinning(at);
    if (is_copy_from_host(at)) return look_at_copy(at);
    if (is_cpu_work(at)) {
      add("PG201", at, fmt::format("{} computes on tensors of the CPU", runs_.op_name(at)));
    } else {
      look_at_operands(at);
    }
  }

  void add(std::string_view rule, OpAt at, std::string what) {
    const bool optimizer = (rule == "PG201" || rule == "PG203") && runs_.called_by_optimizer(at);
    Finding finding = runs_.finding(optimizer ? "PG1001" : rule, at);
    finding.what = std::move(what);
    findings_.push_back(std::move(finding));
  }

  bool uses_other_device(OpAt at) {
    const auto foreign = [&](const TensorRecord& tensor) {
      return tensor.device.is_cpu() ? false : !runs_.on_cuda() || tensor.device != runs_.device();
    };
    for (const auto tensors : {runs_.inputs(at), runs_.outputs(at)}) {
      const auto found = std::find_if(tensors.begin(), tensors.end(), foreign);
      if (found == tensors.end()) continue;
      add("PG204", at,
          fmt::format("{} uses a tensor of {}, the graph belongs to {}", runs_.op_name(at), found->device.str(),
                      runs_.device().str()));
      return true;
    }
    return false;
  }

  [[nodiscard]] bool flag(OpAt at, std::string_view name) const {
    const OpRecord& op = runs_.op(at);
    const auto scalars = trace().scalars(op);
    return std::any_of(scalars.begin(), scalars.end(), [&](const ScalarRecord& scalar) {
      const bool* value = std::get_if<bool>(&scalar.value);
      return value != nullptr && *value && argument_name(op, scalar.argument) == name;
    });
  }

  void look_at_pinning(OpAt at) {
    const std::string_view name = runs_.op(at).info->schema().name();
    const auto inputs = runs_.inputs(at);
    const auto outputs = runs_.outputs(at);
    const bool copies_out = name == "aten::_to_copy" && inputs.size() == 1 && inputs[0].device.is_cuda() &&
                            outputs.size() == 1 && is_cpu(outputs[0]) && flag(at, "non_blocking");
    if (name == "aten::_pin_memory" || name == "aten::pin_memory" || copies_out || flag(at, "pin_memory")) {
      add("PG205", at, fmt::format("{} allocates pinned memory", runs_.op_name(at)));
    }
  }

  [[nodiscard]] bool is_copy_from_host(OpAt at) const {
    const auto inputs = runs_.inputs(at);
    const auto outputs = runs_.outputs(at);
    if (runs_.op(at).info->name == "aten::_to_copy") {
      return inputs.size() == 1 && is_cpu(inputs[0]) && outputs.size() == 1 && !is_cpu(outputs[0]);
    }
    return runs_.op(at).info->name == "aten::copy_" && inputs.size() == 2 && !is_cpu(inputs[0]) && is_cpu(inputs[1]) &&
           !inputs[1].number;
  }

  void look_at_copy(OpAt at) {
    const bool pinned = runs_.note(at).pinned_host;
    if (pinned && flag(at, "non_blocking")) return;
    add("PG202", at,
        pinned ? fmt::format("{} copies pinned memory to the device and waits: non_blocking is off", runs_.op_name(at))
               : fmt::format("{} copies memory of the host that is not pinned to the device", runs_.op_name(at)));
  }

  // Made of numbers alone it is a constant: what it is used for shows. Random numbers are a matter of their own.
  [[nodiscard]] bool is_cpu_work(OpAt at) const {
    const OpRecord& op = runs_.op(at);
    const auto inputs = runs_.inputs(at);
    const auto outputs = runs_.outputs(at);
    if (op.info->is_view || op.info->is_empty || op.info->seeded || op.host_read) return false;
    if (std::find(kNoWork.begin(), kNoWork.end(), op.info->schema().name()) != kNoWork.end()) return false;
    const bool has_tensor =
        std::any_of(inputs.begin(), inputs.end(), [](const TensorRecord& input) { return !input.number; });
    return has_tensor && std::all_of(inputs.begin(), inputs.end(), is_cpu) &&
           std::all_of(outputs.begin(), outputs.end(), is_cpu);
  }

  // Operations of CUDA take a number from the CPU as an argument of the kernel, and move indices by a copy.
  void look_at_operands(OpAt at) {
    const auto inputs = runs_.inputs(at);
    const bool on_device = std::any_of(inputs.begin(), inputs.end(), [](const auto& input) { return !is_cpu(input); });
    if (!on_device || runs_.op(at).info->schema().name() == "aten::copy_") return;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!is_cpu(inputs[i]) || inputs[i].number || inputs[i].storage == nullptr) continue;
      if (inputs[i].rank > 0) {
        add("PG202", at,
            fmt::format("{} moves {} to the device", runs_.op_name(at), tensor_words(runs_, at, inputs[i])));
      } else if (!is_constant(at, inputs[i])) {
        add("PG203", at,
            fmt::format("{} takes the value of {} from the CPU", runs_.op_name(at),
                        tensor_words(runs_, at, inputs[i])));
      }
    }
  }

  // Seeds and offsets of attention, which lie on the device in a capture; numbers that became tensors: where they change,
  // that is found as a number that does.
  [[nodiscard]] bool is_constant(OpAt at, const TensorRecord& tensor) const {
    const auto made_by_device = [&] {
      const auto producer = producer_of(runs_, at, tensor);
      if (!producer) return false;
      const auto outputs = runs_.outputs(*producer);
      return std::any_of(outputs.begin(), outputs.end(), [](const auto& output) { return !is_cpu(output); });
    };
    const OutsideMemory* outside = runs_.run(run_).find_outside(tensor.storage);
    if (outside != nullptr && outside->made_by_host) return true;
    const auto& values = runs_.run(run_).host_values;
    const bool lifted = std::any_of(values.begin(), values.end(), [&](const HostValues& value) {
      return trace().inputs(trace().ops()[value.op])[value.tensor].storage == tensor.storage;
    });
    return lifted || made_by_device();
  }

  const ObservedRuns& runs_;
  std::size_t run_;
  Findings findings_;
};

}  // namespace

Findings check_devices(const ObservedRuns& runs) {
  Findings findings;
  for (std::size_t run = 0; run < runs.size(); ++run) {
    Findings of_run = DeviceCheck(runs, run).findings();
    std::move(of_run.begin(), of_run.end(), std::back_inserter(findings));
  }
  return findings;
}

}  // namespace pianola::auditing
