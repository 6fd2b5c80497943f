#include <pianola/graph/cuda/numbered_calls.hpp>

#include <pianola/core/error.hpp>
#include <pianola/cuda/capture_info.hpp>
#include <pianola/cuda/error_codes.hpp>
#include <pianola/graph/copy_into.hpp>
#include <pianola/graph/cuda/allocation_watch.hpp>
#include <pianola/graph/cuda/call_numbers.hpp>
#include <pianola/graph/cuda/thread_streams.hpp>
#include <pianola/graph/island.hpp>
#include <pianola/graph/read_check.hpp>
#include <pianola/trace/alias.hpp>
#include <pianola/trace/describe.hpp>
#include <pianola/trace/host_copy.hpp>
#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/step_memory.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/StorageImpl.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <exception>
#include <iterator>
#include <optional>

namespace pianola::graph {
namespace {

// A tensor at the same place that holds no memory: what the capture freed it uses again.
at::Tensor at_the_place_of(const at::Tensor& tensor) {
  at::Tensor alias = trace::alias_of(tensor);
  if (!tensor.is_cuda() || !tensor.has_storage()) return alias;
  const c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  auto place = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), storage.nbytes(),
                                                     c10::DataPtr(const_cast<void*>(storage.data()), tensor.device()),
                                                     nullptr, /*resizable=*/false);
  alias.unsafeGetTensorImpl()->set_storage_keep_dtype(c10::Storage(std::move(place)));
  return alias;
}

std::vector<at::Tensor> tensors_in(const torch::jit::Stack& values) {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& value : values) {
    trace::for_each_tensor(value, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
  }
  return tensors;
}

std::uint64_t number_of(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

// What an operation allocated for its results, and where the capture has each. A result that is an argument, perhaps another than
// in the capture, is not among them; but an island's is, whose capture never ran it and has all results in places of their own.
struct Result {
  at::Tensor anew;
  at::Tensor place;
};
std::vector<Result> fresh_results(const trace::OpInfo& op, const torch::jit::Stack& inputs,
                                  const torch::jit::Stack& results, const torch::jit::Stack& captured) {
  std::vector<Result> fresh;
  const std::vector<at::Tensor> places = tensors_in(captured);
  if (places.empty()) return fresh;
  const std::vector<at::Tensor> given = is_island(op.name) ? std::vector<at::Tensor>() : tensors_in(inputs);
  const std::vector<at::Tensor> anew = tensors_in(results);
  for (std::size_t i = 0; i < std::min(anew.size(), places.size()); ++i) {
    const bool was_given = std::any_of(given.begin(), given.end(), [&](const at::Tensor& input) {
      return trace::storage_of(input) == trace::storage_of(anew[i]);
    });
    if (!was_given) fresh.push_back({.anew = anew[i], .place = places[i]});
  }
  return fresh;
}

std::vector<MovedResult> moved(const std::vector<Result>& results) {
  std::vector<MovedResult> moved;
  for (const auto& [anew, place] : results) {
    moved.push_back({.captured = number_of(trace::address_of(place)),
                     .anew = number_of(trace::address_of(anew)),
                     .bytes = std::max<std::size_t>(trace::span_bytes_of(anew), 1)});
  }
  return moved;
}

// Libraries of linear algebra keep memory for each stream, and what operators of somebody's own keep nobody knows.
bool may_use_workspaces(const trace::OpInfo& op) {
  constexpr std::array kNames = {"aten::addmm",  "aten::addmv",   "aten::addr",    "aten::baddbmm", "aten::addbmm",
                                 "aten::_addmm", "aten::sparse_", "aten::linalg_", "aten::_cdist_"};
  return !op.name.starts_with("aten::") ||
         std::any_of(kNames.begin(), kNames.end(), [&](const char* name) { return op.name.starts_with(name); });
}

// The same tensor in another place.
bool is_moved(const c10::IValue& before, const c10::IValue& now) {
  if (!before.isTensor() || !now.isTensor() || !now.toTensor().defined() || !now.toTensor().is_cuda()) return false;
  const at::Tensor &one = before.toTensor(), &other = now.toTensor();
  return one.has_storage() && other.has_storage() && one.sizes() == other.sizes() && one.strides() == other.strides() &&
         one.scalar_type() == other.scalar_type();
}

void places_of(const torch::jit::Stack& inputs, std::vector<Place>& places) {
  places.clear();
  for (const c10::IValue& input : inputs) {
    if (!input.isTensor() || !input.toTensor().is_cuda() || !input.toTensor().has_storage()) continue;
    const at::Tensor& tensor = input.toTensor();
    const std::uint64_t memory = number_of(tensor.storage().data());
    places.push_back({.address = number_of(trace::address_of(tensor)),
                      .memory = {.begin = memory, .end = memory + tensor.storage().nbytes()}});
  }
}

// What calls that have returned left on the stack, as far as an operation and a launch reach.
[[gnu::noinline]] void fill_stack(std::byte with) {
  std::array<std::byte, 24 * 1024> bytes;
  std::memset(bytes.data(), std::to_integer<int>(with), bytes.size());
  asm volatile("" : : "r"(bytes.data()) : "memory");  // the compiler takes it for used
}

// Operations of one stream follow each other. Of several, nobody can tell which nodes are whose.
bool is_of_one_stream(const OpTrace& trace) {
  std::optional<c10::StreamId> stream;
  return std::all_of(trace.ops().begin(), trace.ops().end(), [&](const OpRecord& op) {
    return trace.nodes(op).empty() || op.stream == stream.value_or(op.stream) || !stream.emplace(op.stream);
  });
}

}  // namespace

// A capture of single operations, which are never run.
class NumberedCalls::Rehearsal {
 public:
  explicit Rehearsal(c10::Device device)
      : stream_(thread_stream(StreamPurpose::numbers, device.index())), on_stream_(stream_) {
    check(driver_.stream_begin_capture(stream_.stream(), CU_STREAM_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture");
  }
  Rehearsal(const Rehearsal&) = delete;
  Rehearsal& operator=(const Rehearsal&) = delete;
  ~Rehearsal() {
    end();
    if (graph_ != nullptr) driver_.graph_destroy(graph_);
  }

  // Nothing where it cannot be captured, which ends the rehearsal.
  std::optional<CapturedAnew> run(const trace::OpInfo& op, torch::jit::Stack stack, const torch::jit::Stack& outputs,
                                  std::byte on_stack) {
    if (may_use_workspaces(op)) return std::nullopt;
    fill_stack(on_stack);
    const std::size_t known = allocations_.allocated();
    try {
      const torch::jit::Stack inputs = stack;
      if (auto given = trace::number_given(op, inputs)) {
        stack = std::move(given->inputs);
        given->op->handle.callBoxed(&stack);
      } else {
        op.handle.callBoxed(&stack);
      }
      if (capture_status(stream_.stream()) != CaptureStatus::active) return std::nullopt;
      const auto nodes = frontier_.advance(stream_.stream());
      return CapturedAnew{.nodes = {nodes.begin(), nodes.end()},
                          .memory = {.results = moved(fresh_results(op, inputs, stack, outputs)),
                                     .all = allocations_.allocated_since(known)}};
    } catch (const std::exception&) {  // a replay runs the operation itself, and throws what it throws
      return std::nullopt;
    }
  }

  // The nodes can be read then. @return  Whether there are any: who waits for the whole device breaks all captures on it.
  bool end() noexcept {
    if (!ended_) {
      ended_ = true;
      driver_.stream_end_capture(stream_.stream(), &graph_);
      (void)cudaGetLastError();  // of an operation that could not be captured
    }
    return graph_ != nullptr;
  }

 private:
  const Driver& driver_ = Driver::get();
  c10::cuda::CUDAStream stream_;
  c10::cuda::CUDAStreamGuard on_stream_;
  trace::QuietScope quiet_;
  at::AutoDispatchBelowADInplaceOrView below_autograd_;  // what is kept has no history
  AllocationWatch allocations_{c10::MempoolId_t{0, 0}};  // outside of all pools
  CaptureFrontier frontier_;
  CUgraph graph_ = nullptr;
  bool ended_ = false;
};

void NumberedCalls::on_op_begin(const trace::OpSpan& op) {
  ++operations_;
  if (op.around != 0 || op.info->seeded || op.info->is_empty || op.info->is_view) return;
  if (!is_island(op.info->name) && !(wanted_ && wanted_(operations_))) return;
  running_.emplace_back(op.number, operations_);
  Call& call = calls_.emplace(operations_, Call{.op = op.info, .inputs = {}}).first->second;
  trace::ArgumentAliases places(&at_the_place_of);
  for (const c10::IValue& input : op.inputs) {
    trace::for_each_tensor(input, [&](const at::Tensor& tensor) {
      const bool is_of_others = !op.memory->made(tensor) && is_in_pool_(number_of(trace::address_of(tensor)));
      if (is_of_others) call.fixed.push_back(call.inputs.size());
    });
    call.inputs.push_back(places.of(input));
  }
}

void NumberedCalls::on_op_end(const trace::OpSpan& op) {
  // Not always the last one: threads of autograd take turns.
  const auto running =
      std::find_if(running_.begin(), running_.end(), [&](const auto& one) { return one.first == op.number; });
  if (running == running_.end()) return;
  const std::size_t operation = running->second;
  Call& call = calls_.at(operation);
  running_.erase(running);
  trace::ArgumentAliases places(&at_the_place_of);
  for (const c10::IValue& output : op.outputs) call.outputs.push_back(places.of(output));
  if (is_island(call.op->name)) return;
  // What is computed on the host is no part of the graph.
  const auto is_on_device = [](const torch::jit::Stack& values) {
    const std::vector<at::Tensor> tensors = tensors_in(values);
    return std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) { return tensor.is_cuda(); });
  };
  if (!is_on_device(call.outputs) && !(call.outputs.empty() && is_on_device(call.inputs))) calls_.erase(operation);
}

void NumberedCalls::finish(const OpTrace& trace) {
  wanted_ = nullptr;
  is_in_pool_ = nullptr;
  if (!is_of_one_stream(trace)) calls_.clear();
  for (const auto& [number, operation] : std::exchange(running_, {})) calls_.erase(operation);  // they threw
  // What one calls around its own kernel has nodes of its own.
  for (const OpRecord& op : trace.ops()) {
    if (op.around >= 0) calls_.erase(static_cast<std::size_t>(op.around) + 1);
  }
  for (auto entry = calls_.begin(); entry != calls_.end();) {
    auto& [operation, call] = *entry;
    const bool is_known = operation <= trace.ops().size() && trace.ops()[operation - 1].info == call.op &&
                          (!trace.ops()[operation - 1].opaque || is_island(call.op->name));
    if (!is_known) {
      entry = calls_.erase(entry);
      continue;
    }
    for (const void* node : trace.nodes(trace.ops()[operation - 1])) {
      call.handles.push_back(static_cast<CUgraphNode>(const_cast<void*>(node)));
    }
    ++entry;
  }
  leave_islands_to_hand(trace);
}

void NumberedCalls::leave_islands_to_hand(const OpTrace& trace) {
  for (std::size_t i = 0; i < trace.ops().size(); ++i) {
    if (!is_island(trace.ops()[i].info->name)) continue;
    if (!calls_.contains(i + 1)) {
      throw CaptureError(
          {.what = "the graph cannot be launched up to a part that stays eager: the step runs on several streams, or "
                   "calls the part inside of another operation",
           .where = trace.place(trace.ops()[i]),
           .fix = "run the step on one stream, and call the part from the step itself"});
    }
    leave_to_hand(i + 1);
  }
}

bool NumberedCalls::has(std::size_t operation, std::size_t argument) const {
  const auto call = calls_.find(operation);
  return call != calls_.end() && argument < call->second.inputs.size() &&
         std::find(call->second.fixed.begin(), call->second.fixed.end(), argument) == call->second.fixed.end();
}

bool NumberedCalls::is_on_device(std::size_t operation, std::size_t argument) const {
  const c10::IValue& given = calls_.at(operation).inputs.at(argument);
  return given.isTensor() && given.toTensor().is_cuda();
}

void NumberedCalls::set(std::size_t operation, std::size_t argument, const c10::IValue& value) {
  Numbered& numbered = *calls_.find(operation);
  Call& call = numbered.second;
  if (call.followed.empty() && call.arguments.numbers.empty())
    numerals_of(*call.op, call.inputs, call.arguments.numbers);
  c10::IValue& input = call.inputs[argument];
  const bool is_same_tensor = input.isTensor() && value.isTensor() && input.toTensor().is_same(value.toTensor());
  if (!is_same_tensor) {
    if (!is_moved(input, value)) {
      const bool is_number = is_numeral(*call.op, argument, input) && is_numeral(*call.op, argument, value);
      (is_number ? call.has_other_numbers : call.is_out_of_reach) = true;
    }
    input = value;
  }
  if (!std::exchange(call.is_unsettled, true)) unsettled_.push_back(&numbered);
}

void NumberedCalls::settle() {
  if (unsettled_.empty()) return;
  ++time_;
  settling_.clear();
  std::swap(settling_, unsettled_);
  std::vector<Numbered*>& calls = settling_;
  for (Numbered* numbered : calls) {
    Call& call = numbered->second;
    call.is_unsettled = false;
    places_of(call.inputs, call.arguments.places);
    if (std::exchange(call.has_other_numbers, false)) numerals_of(*call.op, call.inputs, call.arguments.numbers);
  }
  std::erase_if(calls, [this](Numbered* numbered) { return follows(numbered->second); });
  if (calls.empty()) return;
  try {
    settle(calls);
  } catch (...) {  // who set the numbers will not do so again
    for (const Numbered* numbered : calls) leave_to_hand(numbered->first);
    throw;
  }
}

// nullptr: there is none for arguments that are aligned so.
FollowedCall* NumberedCalls::followed_of(Call& call) {
  const auto found = std::find_if(call.followed.begin(), call.followed.end(),
                                  [&](const FollowedCall& one) { return one.is_for(call.arguments); });
  return found == call.followed.end() ? nullptr : &*found;
}

// Whether it is known what becomes of its nodes.
bool NumberedCalls::follows(Call& call) const {
  if (call.is_out_of_reach) return false;
  FollowedCall* const followed = followed_of(call);
  if (followed == nullptr || !followed->follow(call.arguments)) return false;
  call.current = static_cast<std::size_t>(followed - call.followed.data());
  call.changed_at = time_;
  return true;
}

// Which words follow its numbers, from captures with numbers of our own.
void NumberedCalls::learn_numbers(Call& call) {
  constexpr unsigned kRounds = 3;
  if (call.is_out_of_reach || !has_kernels_for_any_number(*call.op)) return;
  FollowedCall& followed = call.followed[call.current];
  if (!followed.wants_trials()) return;
  followed.note_trials();
  std::vector<CapturedAnew> all;
  std::vector<NumberWords::Capture> trials(kRounds);
  torch::jit::Stack again;
  Rehearsal rehearsal(device_);
  for (NumberWords::Capture& trial : trials) {
    const torch::jit::Stack inputs =
        with_numerals(*call.op, call.inputs, followed.trial(static_cast<unsigned>(all.size())));
    numerals_of(*call.op, inputs, trial.numbers);
    if (again.empty()) {
      for (const c10::IValue& input : inputs) again.push_back(trace::alias_values(input));
    }
    auto anew = rehearsal.run(*call.op, inputs, call.outputs, std::byte{0});
    if (!anew) return;
    all.push_back(*std::move(anew));
  }
  const auto once_more = rehearsal.run(*call.op, std::move(again), call.outputs, std::byte{0xa5});
  if (!once_more || !rehearsal.end()) return;
  for (std::size_t i = 0; i < trials.size(); ++i) {
    auto changes = changes_of(call, all[i]);
    if (!changes) return;
    trials[i].changes = *std::move(changes);
  }
  const auto changes = changes_of(call, *once_more);
  if (changes) followed.learn(std::move(trials), *changes);
}

void NumberedCalls::settle(std::vector<Numbered*> calls) {
  while (!calls.empty()) {
    Rehearsal rehearsal(device_);
    std::vector<Rehearsed> all;
    for (Numbered* numbered : calls) {
      auto rehearsed = rehearse(rehearsal, numbered->second);
      if (!rehearsed) break;
      all.push_back(*std::move(rehearsed));
    }
    if (!rehearsal.end()) {
      for (const Numbered* numbered : calls) leave_to_hand(numbered->first);
      return;
    }
    for (std::size_t i = 0; i < all.size(); ++i) take_over(*calls[i], all[i]);
    for (std::size_t i = 0; i < all.size(); ++i) learn_numbers(calls[i]->second);
    if (all.size() == calls.size()) return;
    leave_to_hand(calls[all.size()]->first);
    calls.erase(calls.begin(), calls.begin() + static_cast<std::ptrdiff_t>(all.size()) + 1);
  }
}

// Twice with other objects for the same tensors, and other bytes on the stack, where that shows what nobody filled.
std::optional<NumberedCalls::Rehearsed> NumberedCalls::rehearse(Rehearsal& rehearsal, Call& call) {
  auto anew = rehearsal.run(*call.op, call.inputs, call.outputs, std::byte{0});
  if (!anew) return std::nullopt;
  Rehearsed rehearsed{.anew = *std::move(anew), .again = {}};
  const FollowedCall* const followed = followed_of(call);
  if (call.is_out_of_reach || followed == nullptr || !followed->wants_again(call.arguments)) return rehearsed;
  torch::jit::Stack others;
  for (const c10::IValue& input : call.inputs) others.push_back(trace::alias_values(input));
  rehearsed.again = rehearsal.run(*call.op, std::move(others), call.outputs, std::byte{0xa5});
  if (!rehearsed.again) return std::nullopt;
  return rehearsed;
}

std::optional<std::vector<NodeChange>> NumberedCalls::changes_of(Call& call, const CapturedAnew& anew) {
  if (anew.nodes.size() != call.handles.size()) return std::nullopt;
  if (call.nodes.empty()) {
    for (CUgraphNode handle : call.handles) call.nodes.push_back(reader_.read(handle));
  }
  const auto others = has_kernels_for_any_number(*call.op) ? OtherFunctions::allowed : OtherFunctions::refused;
  std::vector<NodeChange> changes;
  for (std::size_t i = 0; i < anew.nodes.size(); ++i) {
    auto change = NodeChange::between(call.nodes[i], anew.nodes[i], reader_, anew.memory, Driver::get(), others);
    if (!change) return std::nullopt;
    changes.push_back(*std::move(change));
  }
  return changes;
}

void NumberedCalls::take_over(Numbered& numbered, const Rehearsed& rehearsed) {
  constexpr std::size_t kMostAlignments = 64;
  auto& [operation, call] = numbered;
  auto changes = changes_of(call, rehearsed.anew);
  if (!changes) return leave_to_hand(operation);
  const auto again = rehearsed.again ? changes_of(call, *rehearsed.again) : std::nullopt;
  if (call.is_out_of_reach || call.followed.size() == kMostAlignments) call.followed.clear();
  FollowedCall* followed = followed_of(call);
  if (followed == nullptr) followed = &call.followed.emplace_back(call.arguments);
  followed->take(*std::move(changes), again ? std::span<const NodeChange>(*again) : std::span<const NodeChange>(),
                 call.arguments);
  call.current = static_cast<std::size_t>(followed - call.followed.data());
  call.changed_at = time_;
  call.is_out_of_reach = false;
  std::erase_if(by_hand_, [operation](const ByHand& one) { return one.operation == operation; });
}

void NumberedCalls::leave_to_hand(std::size_t operation) {
  Call& call = calls_.at(operation);
  call.is_out_of_reach = true;  // whatever it was given, no node has it
  const auto behind = place_of_check(call.op->name, call.inputs);
  const ByHand by_hand{.operation = operation, .place = behind.value_or(operation), .is_moved = behind.has_value()};
  const auto place = std::lower_bound(by_hand_.begin(), by_hand_.end(), by_hand);
  if (place == by_hand_.end() || *place != by_hand) by_hand_.insert(place, by_hand);
}

void NumberedCalls::give(const Target& target) {
  if (target.given_at == time_) return;
  for (auto& [operation, call] : calls_) {
    if (call.changed_at <= target.given_at || operation < target.first || operation > target.last) continue;
    if (call.followed.empty()) continue;  // by hand since the capture
    try {
      for (std::size_t i = 0; i < call.handles.size(); ++i) {
        call.followed[call.current].changes()[i].apply(target.executable, target.node(call.handles[i]));
      }
    } catch (const DeviceError&) {
      leave_to_hand(operation);
    }
  }
  target.given_at = time_;
}

std::size_t NumberedCalls::last_by_hand(std::size_t operation) const noexcept {
  const auto behind =
      std::find_if(by_hand_.begin(), by_hand_.end(), [operation](const ByHand& one) { return one.place > operation; });
  return behind == by_hand_.begin() ? 0 : std::prev(behind)->place;
}

void NumberedCalls::run(std::size_t operation) const {
  const Call& call = calls_.at(operation);
  const trace::QuietScope quiet;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  torch::jit::Stack stack = call.inputs;
  call.op->handle.callBoxed(&stack);
  for (const auto& [anew, place] : fresh_results(*call.op, call.inputs, stack, call.outputs)) {
    if (anew.sizes() != place.sizes() || anew.scalar_type() != place.scalar_type()) {
      throw ReplayError(
          {.what = fmt::format("{} has another result with the number that it is given now: {} in place of {}",
                               call.op->name, trace::describe(anew), trace::describe(place)),
           .where = fmt::format("operation {} of the step", operation),
           .fix = "capture another graph for this number",
           .rule = "PG502"});
    }
    copy_into({&place, 1}, {&anew, 1});
  }
}

}  // namespace pianola::graph
