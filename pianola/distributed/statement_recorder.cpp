#include <pianola/distributed/statement_recorder.hpp>

#include <pianola/trace/op_info.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <c10/core/ScalarType.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <exception>
#include <functional>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include <unistd.h>

namespace pianola::distributed {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using Kind = Call::Kind;

// By how an operator's name begins, without underscores: c10d::_allgather_base_, _c10d_functional::all_gather_into_tensor.
constexpr std::array<std::pair<std::string_view, Kind>, 11> kKinds = {{{"reducescatter", Kind::reduce_scatter},
                                                                       {"allreduce", Kind::all_reduce},
                                                                       {"allgather", Kind::all_gather},
                                                                       {"alltoall", Kind::all_to_all},
                                                                       {"broadcast", Kind::broadcast},
                                                                       {"reduce", Kind::reduce},
                                                                       {"gather", Kind::gather},
                                                                       {"scatter", Kind::scatter},
                                                                       {"barrier", Kind::barrier},
                                                                       {"send", Kind::send},
                                                                       {"recv", Kind::receive}}};

std::optional<Kind> kind_of(std::string_view qualified) {
  std::string name(qualified.substr(qualified.find("::") + 2));
  std::erase(name, '_');
  const auto found =
      std::find_if(kKinds.begin(), kKinds.end(), [&](const auto& one) { return name.starts_with(one.first); });
  return found == kKinds.end() ? std::nullopt : std::optional(found->second);
}

std::string name_of(const c10d::ReduceOp& op) {
  constexpr std::array<std::string_view, 9> kReductions = {"sum",  "avg", "product", "min",       "max",
                                                           "band", "bor", "bxor",    "premul_sum"};
  const auto index = static_cast<std::size_t>(op.op_);
  return std::string(index < kReductions.size() ? kReductions.at(index) : "another reduction");
}

// What an operator was given, by the names of its arguments.
struct Arguments {
  std::vector<at::Tensor> inputs, outputs;
  bool has_input_lists = false, has_output_lists = false;  // one tensor a member
  std::vector<std::int64_t> input_splits, output_splits;
  std::string reduction;
  std::int64_t root = -1, peer = -1;
  Group group;

  explicit Arguments(const trace::OpSpan& op) {
    const auto& arguments = op.info->schema().arguments();
    for (std::size_t i = 0; i < std::min(op.inputs.size(), arguments.size()); ++i)
      take(arguments[i].name(), op.inputs[i]);
  }

 private:
  void take(std::string_view name, const c10::IValue& value) {
    if (name.starts_with("input_split")) {
      input_splits = value.toIntVector();
    } else if (name.starts_with("output_split")) {
      output_splits = value.toIntVector();
    } else if (name.starts_with("input") || name.starts_with("tensor")) {
      has_input_lists = take_tensors(value, inputs);
    } else if (name == "output_lists") {  // of coalesced calls: not one tensor a member
    } else if (name.starts_with("out")) {
      has_output_lists = take_tensors(value, outputs);
    } else if (name == "group_name") {
      group = c10d::resolve_process_group(value.toStringRef());
    } else if (name == "process_group") {
      group = value.toCustomClass<c10d::ProcessGroup>();
    } else if (name == "reduce_op") {
      reduction = value.isString() ? value.toStringRef() : name_of(*value.toCustomClass<c10d::ReduceOp>());
    } else if (name == "root_rank") {
      root = value.toInt();
    } else if (name == "src" || name == "dst") {
      peer = value.toInt();
    }
  }

  // Whether it is a list of lists, of which the first is this process's.
  static bool take_tensors(const c10::IValue& value, std::vector<at::Tensor>& tensors) {
    const bool is_nested = value.isList() && !value.toListRef().empty() && value.toListRef()[0].isList();
    trace::for_each_tensor(is_nested ? value.toListRef()[0] : value,
                           [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
    return is_nested;
  }
};

std::int64_t elements_of(const std::vector<at::Tensor>& tensors) {
  return std::accumulate(tensors.begin(), tensors.end(), std::int64_t{0},
                         [](std::int64_t sum, const at::Tensor& tensor) { return sum + tensor.numel(); });
}

std::vector<std::int64_t> lengths_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::int64_t> lengths;
  for (const at::Tensor& tensor : tensors) lengths.push_back(tensor.numel());
  return lengths;
}

// Of rows for each member.
std::vector<std::int64_t> split(const std::vector<at::Tensor>& tensors, std::vector<std::int64_t> rows,
                                std::int64_t size) {
  if (rows.empty()) return {elements_of(tensors) / size};
  const at::Tensor& whole = tensors.front();
  const std::int64_t row = whole.dim() == 0 || whole.size(0) == 0 ? 1 : whole.numel() / whole.size(0);
  for (std::int64_t& count : rows) count *= row;
  return rows;
}

void set_lengths(Call& call, const Arguments& given, std::int64_t size) {
  const std::int64_t in = elements_of(given.inputs), out = elements_of(given.outputs);
  const bool has_out = !given.outputs.empty();
  switch (call.kind) {
    case Kind::all_reduce:
    case Kind::broadcast:
    case Kind::reduce:
      call.gives = call.takes = {in};
      break;
    case Kind::all_gather:
      call.gives = {in};
      call.takes = given.has_output_lists ? lengths_of(given.outputs) : std::vector{has_out ? out / size : in};
      break;
    case Kind::reduce_scatter:
      call.gives = given.has_input_lists ? lengths_of(given.inputs) : std::vector{in / size};
      call.takes = {has_out ? out : in / size};
      break;
    case Kind::all_to_all:
      if (given.inputs.size() == 1) {
        call.gives = split(given.inputs, given.input_splits, size);
        call.takes = split(has_out ? given.outputs : given.inputs, given.output_splits, size);
      } else {
        call.gives = lengths_of(given.inputs);
        call.takes = lengths_of(given.outputs);
      }
      break;
    case Kind::gather:
      call.gives = {in};
      if (has_out) call.takes = lengths_of(given.outputs);
      break;
    case Kind::scatter:
      if (in != 0) call.gives = lengths_of(given.inputs);
      call.takes = {out};
      break;
    case Kind::send:
      call.gives = {in};
      break;
    case Kind::receive:
      call.takes = {in};
      break;
    case Kind::barrier:
      break;
  }
}

Call call_of(Kind kind, const Arguments& given) {
  Call call{.kind = kind};
  const auto& told = given.inputs.empty() ? given.outputs : given.inputs;
  if (!told.empty() && kind != Kind::barrier) call.agreed = c10::toString(told.front().scalar_type());
  if (!given.reduction.empty()) call.agreed += ", " + given.reduction;
  if (const std::int64_t root = std::max(given.root, call.is_message() ? -1 : given.peer); root >= 0)
    call.agreed += fmt::format(", root {}", root);
  if (call.is_message()) call.peer = given.peer;
  set_lengths(call, given, given.group->getSize());
  for (const at::Tensor& tensor : given.inputs) call.bytes += static_cast<std::int64_t>(tensor.nbytes());
  return call;
}

std::string name_of_process() {
  std::array<char, 256> host{};
  (void)gethostname(host.data(), host.size() - 1);
  return fmt::format("{}/{}", host.data(), getpid());
}

}  // namespace

std::int64_t sequence_number(c10d::ProcessGroup& group, c10::DeviceType device) {
  try {
    return static_cast<std::int64_t>(group.getBackend(device)->getSequenceNumberForGroup());
  } catch (const std::exception&) {
    return -1;
  }
}

StatementRecorder::StatementRecorder(c10::DeviceType device) : device_(device) {
  statement_.process = name_of_process();
}

void StatementRecorder::on_op_begin(const trace::OpSpan& op) {
  if (!op.info->collective) return;
  const std::lock_guard lock(mutex_);
  const std::uint32_t place = collectives_++;
  const auto kind = kind_of(op.info->schema().name());
  if (!kind) return;  // a wait
  try {
    const Arguments given(op);
    if (!given.group) return;
    const std::uint32_t group = index_of(given.group);
    Call call = call_of(*kind, given);
    call.place = place;
    call.group = group;
    statement_.calls.push_back(std::move(call));
  } catch (const std::exception&) {  // a call that no version of torch had when this was written
    is_whole_ = false;
  }
}

std::uint32_t StatementRecorder::index_of(const Group& group) {
  const auto known = std::find(groups_.begin(), groups_.end(), group);
  if (known != groups_.end()) return static_cast<std::uint32_t>(known - groups_.begin());
  std::string name;
  try {
    name = group->getGroupName();
  } catch (const c10::Error&) {  // one that was made by hand may have none, and cannot be asked for then
  }
  groups_.push_back(group);
  statement_.groups.push_back({.group = name, .member = group->getRank(), .size = group->getSize(), .moment = ""});
  begins_.push_back(sequence_number(*group, device_));
  not_counted_.push_back(GroupClock::of_this_process().counter(name)->load());
  return static_cast<std::uint32_t>(groups_.size() - 1);
}

RunByReplays StatementRecorder::take_off_clocks() const {
  RunByReplays run;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const std::int64_t collectives = sequence_number(*groups_[i], device_) - begins_[i];
    if (begins_[i] < 0 || collectives <= 0) continue;
    GroupClock::Counter counter = GroupClock::of_this_process().counter(statement_.groups[i].group);
    counter->fetch_sub(collectives);
    run.add(std::move(counter), collectives);
  }
  return run;
}

std::vector<std::string> StatementRecorder::names() const {
  std::vector<std::string> names;
  for (const Membership& one : statement_.groups) {
    if (!one.group.empty() && std::find(names.begin(), names.end(), one.group) == names.end())
      names.push_back(one.group);
  }
  return names;
}

Statement StatementRecorder::statement(const OpTrace* trace) const {
  Statement statement = statement_;
  for (std::size_t i = 0; is_whole_ && i < groups_.size(); ++i) {
    if (begins_[i] >= 0 && !statement.groups[i].group.empty())
      statement.groups[i].moment = std::to_string(begins_[i] + not_counted_[i]);
  }
  const auto largest = std::max_element(statement.groups.begin(), statement.groups.end(),
                                        [](const Membership& a, const Membership& b) { return a.size < b.size; });
  if (largest != statement.groups.end()) statement.name = fmt::format("rank {}", largest->member);
  std::vector<bool> is_alone;  // of the collectives: it adds nodes of its own
  if (trace != nullptr) {
    for (const OpRecord& op : trace->ops()) {
      if (op.info->collective) is_alone.push_back(op.nodes != 0);
    }
  }
  for (std::size_t i = 0; i + 1 < statement.calls.size(); ++i) {
    Call& call = statement.calls[i];
    const Call& next = statement.calls[i + 1];
    const bool may = call.is_message() && next.is_message() && call.group == next.group;
    call.with_next = may && !(call.place < is_alone.size() && is_alone[call.place]);
  }
  return statement;
}

}  // namespace pianola::distributed
