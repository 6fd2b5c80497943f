#include <pianola/verify/trace_change.hpp>

#include <pianola/trace/op_info.hpp>

#include <ATen/core/function_schema.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <variant>

namespace pianola::verification {
namespace {

std::string argument_text(const OpRecord& op, int argument) {
  const auto& arguments = op.info->schema().arguments();
  const auto index = static_cast<std::size_t>(argument);
  const std::string name = index < arguments.size() ? arguments[index].name() : "";
  return name.empty() ? fmt::format("its argument {}", argument) : fmt::format("its argument '{}'", name);
}

std::string number_text(const ScalarRecord& number) {
  return std::visit([](auto value) { return fmt::format("{}", value); }, number.value);
}

// NaN is equal to itself here.
bool same(const ScalarRecord& one, const ScalarRecord& other) {
  return one.argument == other.argument && (one.value == other.value || number_text(one) == number_text(other));
}

class TraceComparison {
 public:
  TraceComparison(const TracedRun& earlier, const TracedRun& later) : earlier_(earlier), later_(later) {}

  std::vector<TraceChange> run() {
    const auto was = earlier_.trace->ops();
    const auto is = later_.trace->ops();
    for (std::size_t i = 0; i < std::min(was.size(), is.size()); ++i) {
      if (was[i].info != is[i].info) {
        add(i, fmt::format("{} ran here, and {} {}", later_.trace->name(is[i]), earlier_.trace->name(was[i]),
                           earlier_.when));
        return std::move(changes_);
      }
      compare_numbers(i, was[i], is[i]);
      compare_tensors(i, was[i], is[i]);
    }
    if (was.size() != is.size() && !is.empty()) {
      add(std::min(was.size(), is.size() - 1),
          fmt::format("the step runs {} operations, and {} {}", is.size(), was.size(), earlier_.when));
    }
    return std::move(changes_);
  }

 private:
  void add(std::size_t op, std::string what) { changes_.push_back({.op = op, .what = std::move(what)}); }

  void compare_numbers(std::size_t index, const OpRecord& was, const OpRecord& is) {
    const auto before = earlier_.trace->scalars(was);
    const auto now = later_.trace->scalars(is);
    for (std::size_t i = 0; i < std::min(before.size(), now.size()); ++i) {
      if (same(before[i], now[i])) continue;
      add(index, fmt::format("{} is {}, and was {} {}", argument_text(is, now[i].argument), number_text(now[i]),
                             number_text(before[i]), earlier_.when));
    }
  }

  void compare_tensors(std::size_t index, const OpRecord& was, const OpRecord& is) {
    const auto before = earlier_.trace->inputs(was);
    const auto now = later_.trace->inputs(is);
    for (std::size_t i = 0; i < std::min(before.size(), now.size()); ++i) {
      if (before[i].number || now[i].number) continue;
      const std::string argument = argument_text(is, now[i].argument);
      if (!std::ranges::equal(earlier_.trace->sizes(before[i]), later_.trace->sizes(now[i]))) {
        add(index,
            fmt::format("{} has shape [{}], and had [{}] {}", argument, fmt::join(later_.trace->sizes(now[i]), ", "),
                        fmt::join(earlier_.trace->sizes(before[i]), ", "), earlier_.when));
      } else if (was_replaced(before[i], now[i])) {
        add(index, fmt::format("{} is another tensor than {}", argument, earlier_.when));
      }
    }
  }

  [[nodiscard]] bool was_replaced(const TensorRecord& before, const TensorRecord& now) const {
    if (before.address == now.address || before.made_in_step || now.made_in_step) return false;
    return !is_own(earlier_, before) && !is_own(later_, now);
  }

  static bool is_own(const TracedRun& run, const TensorRecord& record) {
    return run.own.contains(static_cast<const c10::StorageImpl*>(record.storage));
  }

  const TracedRun& earlier_;
  const TracedRun& later_;
  std::vector<TraceChange> changes_;
};

}  // namespace

std::vector<TraceChange> changes_between(const TracedRun& earlier, const TracedRun& later) {
  return TraceComparison(earlier, later).run();
}

std::vector<TraceChange> host_numbers(const OpTrace& trace) {
  std::vector<TraceChange> all;
  for (std::size_t i = 0; i < trace.ops().size(); ++i) {
    const OpRecord& op = trace.ops()[i];
    const auto inputs = trace.inputs(op);
    const bool on_cuda = std::ranges::any_of(inputs, [](const TensorRecord& input) { return input.device.is_cuda(); });
    for (const TensorRecord& input : inputs) {
      if (!on_cuda || !input.device.is_cpu() || input.number || input.rank != 0) continue;
      all.push_back({.op = i,
                     .what = fmt::format("{} is a number in host memory, which a graph keeps",
                                         argument_text(op, input.argument))});
    }
  }
  return all;
}

}  // namespace pianola::verification
