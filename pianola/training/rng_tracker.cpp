#include <pianola/training/rng_tracker.hpp>

#include <pianola/core/error.hpp>
#include <pianola/graph/device_check.hpp>
#include <pianola/graph/open_generators.hpp>

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>

namespace pianola {
namespace {

// Note [Forks on the tape]
// A CUDA generator names its state by a pointer, which kernels that were captured keep: a fork exchanges the pointer while
// the host runs, and a replay has nothing to do. A CPU generator holds its state itself. So a fork exchanges the states of
// two generators there, by an operator, which the tape records and replays like any other.
void swap_generators(at::Generator first, at::Generator second) {
  const std::scoped_lock lock(first.mutex(), second.mutex());
  const at::Tensor state = first.get_state();
  first.set_state(second.get_state());
  second.set_state(state);
}

void call_swap(const at::Generator& first, const at::Generator& second) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("pianola::swap_generators", "")
                             .typed<void(at::Generator, at::Generator)>();
  op.call(first, second);
}

at::Generator default_generator(c10::Device device) { return at::globalContext().defaultGenerator(device); }

at::Tensor state_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

at::Generator copy_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.clone();
}

std::atomic<int> forks = 0;

}  // namespace

TORCH_LIBRARY_FRAGMENT(pianola, library) { library.def("swap_generators(Generator? first, Generator? second) -> ()"); }
TORCH_LIBRARY_IMPL(pianola, CompositeExplicitAutograd, library) { library.impl("swap_generators", &swap_generators); }

RngTracker::Fork::Fork(RngTracker& tracker, std::size_t stream) : tracker_(&tracker), stream_(stream) {
  Stream& named = tracker_->streams_[stream_];
  at::Generator generator = default_generator(tracker_->device_);
  if (tracker_->device_.is_cpu()) {
    call_swap(generator, named.generator);
  } else {
    const std::lock_guard lock(generator.mutex());
    outer_ = generator.graphsafe_get_state();
    generator.graphsafe_set_state(named.generator);
  }
  named.forked = true;
  ++forks;
}

RngTracker::Fork::Fork(Fork&& other) noexcept
    : tracker_(std::exchange(other.tracker_, nullptr)), stream_(other.stream_), outer_(std::move(other.outer_)) {}

RngTracker::Fork::~Fork() {
  if (tracker_ == nullptr) return;
  Stream& named = tracker_->streams_[stream_];
  at::Generator generator = default_generator(tracker_->device_);
  named.forked = false;
  --forks;
  if (tracker_->device_.is_cpu()) {
    call_swap(generator, named.generator);
  } else {
    const std::lock_guard lock(generator.mutex());
    generator.graphsafe_set_state(outer_);
  }
}

RngTracker::RngTracker(c10::Device device) : device_(graph::usable_device(device)) {}

std::size_t RngTracker::index_of(std::string_view name) const {
  const auto found =
      std::find_if(streams_.begin(), streams_.end(), [&](const Stream& stream) { return stream.name == name; });
  return static_cast<std::size_t>(found - streams_.begin());
}

void RngTracker::add(std::string name, std::uint64_t seed) {
  if (index_of(name) != streams_.size()) {
    throw UsageError({.what = fmt::format("there is a random stream '{}' already", name),
                      .fix = "add each name once; load_state_dict() sets where it stands"});
  }
  const auto twin =
      std::find_if(streams_.begin(), streams_.end(), [&](const Stream& stream) { return stream.seed == seed; });
  if (twin != streams_.end()) {
    throw UsageError({.what = fmt::format("seed {} is that of random stream '{}': '{}' would draw the same numbers",
                                          seed, twin->name, name),
                      .fix = "give each stream a seed of its own"});
  }
  at::Generator generator = copy_of(default_generator(device_));
  generator.set_current_seed(seed);
  streams_.push_back({.name = std::move(name), .seed = seed, .generator = std::move(generator)});
}

std::vector<std::string> RngTracker::names() const {
  std::vector<std::string> names;
  for (const Stream& stream : streams_) names.push_back(stream.name);
  return names;
}

RngTracker::Fork RngTracker::fork(std::string_view name) {
  const std::size_t stream = index_of(name);
  if (stream == streams_.size()) {
    throw UsageError({.what = fmt::format("there is no random stream '{}'; there are: {}", name,
                                          streams_.empty() ? "none" : fmt::format("{}", fmt::join(names(), ", "))),
                      .fix = "add() it first"});
  }
  if (streams_[stream].forked) {
    throw UsageError({.what = fmt::format("random stream '{}' is forked already", name),
                      .fix = "end the outer fork first, or draw in it"});
  }
  const std::vector<at::Generator>* const known = graph::open_generators();
  const at::Generator& generator = streams_[stream].generator;
  if (known != nullptr && std::find(known->begin(), known->end(), generator) == known->end()) {
    throw CaptureError({.what = fmt::format("random stream '{}' is forked in a capture that does not know it", name),
                        .fix = "give RngTracker::generators() to CaptureOptions::generators",
                        .rule = "PG601"});
  }
  return {*this, stream};
}

int RngTracker::forks_open() noexcept { return forks; }

void RngTracker::refuse_while_forked(const char* call) const {
  for (const Stream& stream : streams_) {
    if (!stream.forked) continue;
    throw UsageError({.what = fmt::format("{} was called while random stream '{}' is forked", call, stream.name),
                      .fix = "end the fork first"});
  }
}

std::vector<at::Generator> RngTracker::generators() const {
  std::vector<at::Generator> generators;
  for (const Stream& stream : streams_) generators.push_back(stream.generator);
  return generators;
}

std::vector<NamedTensor> RngTracker::state() const {
  refuse_while_forked("state()");
  std::vector<NamedTensor> states;
  for (const Stream& stream : streams_) {
    states.push_back({.name = stream.name, .tensor = state_of(stream.generator)});
  }
  return states;
}

c10::IValue RngTracker::state_dict() const {
  c10::Dict<std::string, at::Tensor> states;
  for (const NamedTensor& state : state()) states.insert(state.name, state.tensor);
  return states;
}

void RngTracker::load_state_dict(const c10::IValue& state) {
  refuse_while_forked("load_state_dict()");
  std::map<std::string, at::Tensor> wanted;
  const auto refuse = [](std::string what) {
    throw UsageError({.what = std::move(what), .fix = "load what RngTracker::state_dict() gave on such a device"});
  };
  if (!state.isGenericDict()) refuse("the state of an RngTracker is a map from names to tensors");
  const std::int64_t bytes = state_of(default_generator(device_)).numel();
  for (const auto& entry : state.toGenericDict()) {
    if (!entry.key().isString() || !entry.value().isTensor()) {
      refuse("the state of an RngTracker is a map from names to tensors");
    }
    const at::Tensor tensor = entry.value().toTensor();
    const std::string& name = entry.key().toStringRef();
    if (!tensor.is_cpu() || tensor.scalar_type() != at::kByte || tensor.numel() != bytes) {
      refuse(fmt::format("the state of random stream '{}' is no state of a generator of {}: {} bytes on the CPU are",
                         name, device_.str(), bytes));
    }
    wanted.emplace(name, tensor);
  }
  for (const Stream& stream : streams_) {
    if (wanted.count(stream.name) == 0) refuse(fmt::format("there is no state of random stream '{}'", stream.name));
  }
  for (const auto& [name, tensor] : wanted) {
    if (index_of(name) == streams_.size()) {
      streams_.push_back({.name = name, .generator = copy_of(default_generator(device_))});
    }
    at::Generator& generator = streams_[index_of(name)].generator;
    const std::lock_guard lock(generator.mutex());
    generator.set_state(tensor);
    streams_[index_of(name)].seed = generator.current_seed();
  }
}

}  // namespace pianola
