#include <pianola/training/rng_tracker.hpp>

#include <pianola/core/error.hpp>
#include <pianola/graph/device_check.hpp>
#include <pianola/graph/open_capture.hpp>
#include <pianola/graph/seed_marks.hpp>

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>
#if PIANOLA_WITH_CUDA
#include <pianola/cuda/capture_info.hpp>

#include <c10/cuda/CUDAStream.h>
#endif

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

namespace pianola {
namespace {

// With the generator's lock. A state begins with the seed, which a recording may have marked: what is kept has the generator's
// own, since another recording's mark means nothing, and what is set keeps the mark.
at::Tensor state_of(const at::Generator& generator) {
  at::Tensor state = generator.get_state();
  const std::uint64_t seed = graph::SeedMarks::seed_of(generator);
  if (generator.device().is_cpu()) std::memcpy(state.mutable_data_ptr(), &seed, sizeof(seed));
  return state;
}

void set_state_of(at::Generator& generator, const at::Tensor& state) {
  generator.set_state(state);
  if (generator.device().is_cpu()) graph::SeedMarks::put_seed(generator, generator.current_seed());
}

// Note [Forks on the tape]
// A CUDA generator names its state by a pointer, which kernels that were captured keep: a fork exchanges the pointer while
// the host runs, and a replay has nothing to do. A CPU generator holds its state itself. So a fork exchanges the states of
// two generators there, by an operator, which the tape records and replays like any other.
void swap_generators(at::Generator first, at::Generator second) {
  const std::scoped_lock lock(first.mutex(), second.mutex());
  const at::Tensor state = state_of(first);
  set_state_of(first, state_of(second));
  set_state_of(second, state);
}

// Note [Rewinding while recording]
// On the tape, again by operators: one reads a state into a tensor, the other sets it, at each replay. On CUDA the place of
// a state is, while a graph is recorded, what was drawn since the recording's start. Set back to an earlier count, the
// kernels that follow get the numbers from there, at each replay. A count means nothing but in the recording that it is of.
at::Tensor generator_state(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return state_of(generator);
}

void set_generator_state(at::Generator generator, const at::Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  set_state_of(generator, state);
}

void call_swap(const at::Generator& first, const at::Generator& second) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("pianola::swap_generators", "")
                             .typed<void(at::Generator, at::Generator)>();
  op.call(first, second);
}

at::Tensor call_state(const at::Generator& generator) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("pianola::generator_state", "").typed<at::Tensor(at::Generator)>();
  return op.call(generator);
}

void call_set_state(const at::Generator& generator, const at::Tensor& state) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("pianola::set_generator_state", "")
                             .typed<void(at::Generator, const at::Tensor&)>();
  op.call(generator, state);
}

#if PIANOLA_WITH_CUDA
// Of the capture that is open on the current stream; 0: none.
std::uint64_t current_capture(c10::Device device) {
  return capture_id(c10::cuda::getCurrentCUDAStream(device.index()).stream());
}
#else
std::uint64_t current_capture(c10::Device /*device*/) { return 0; }
#endif

at::Generator default_generator(c10::Device device) { return at::globalContext().defaultGenerator(device); }

at::Generator copy_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.clone();
}

std::atomic<int> forks = 0;

}  // namespace

TORCH_LIBRARY_FRAGMENT(pianola, library) {
  library.def("swap_generators(Generator? first, Generator? second) -> ()");
  library.def("generator_state(Generator? generator) -> Tensor");
  library.def("set_generator_state(Generator? generator, Tensor state) -> ()");
}
TORCH_LIBRARY_IMPL(pianola, CompositeExplicitAutograd, library) {
  library.impl("swap_generators", &swap_generators);
  library.impl("generator_state", &generator_state);
  library.impl("set_generator_state", &set_generator_state);
}

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

// On CUDA, inside a fork, the place may draw from a state that is neither a stream's nor the current one.
RngTracker::Rewind::Rewind(RngTracker& tracker, const Place& place)
    : tracker_(&tracker), before_(tracker.here()), drawn_from_(place.drawn_from_) {
  if (drawn_from_.defined()) drawn_from_state_ = generator_state(drawn_from_);
  tracker_->go_to(place);
}

RngTracker::Rewind::Rewind(Rewind&& other) noexcept
    : tracker_(std::exchange(other.tracker_, nullptr)),
      before_(std::move(other.before_)),
      drawn_from_(std::move(other.drawn_from_)),
      drawn_from_state_(std::move(other.drawn_from_state_)) {}

RngTracker::Rewind::~Rewind() {
  if (tracker_ == nullptr) return;
  tracker_->go_to(before_);
  if (drawn_from_.defined()) set_generator_state(drawn_from_, drawn_from_state_);
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
  refuse_unknown(streams_[stream], "forked");
  return {*this, stream};
}

void RngTracker::refuse_unknown(const Stream& stream, const char* what) const {
  const std::vector<at::Generator>* const known = graph::open_generators();
  if (known == nullptr || std::find(known->begin(), known->end(), stream.generator) != known->end()) return;
  throw CaptureError(
      {.what = fmt::format("random stream '{}' is {} in a capture that does not know it", stream.name, what),
       .fix = "give RngTracker::generators() to CaptureOptions::generators",
       .rule = "PG601"});
}

RngTracker::Place RngTracker::here() const {
  Place place(*this);
  at::Generator generator = default_generator(device_);
  if (device_.is_cpu()) {
    for (const Stream& stream : streams_) place.states_.push_back(call_state(stream.generator));
    place.states_.push_back(call_state(generator));
  } else {
    const std::lock_guard lock(generator.mutex());
    place.capture_ = current_capture(device_);
    place.drawn_from_ = generator.graphsafe_get_state();
    for (const Stream& stream : streams_) place.states_.push_back(generator_state(stream.generator));
    place.states_.push_back(generator_state(place.drawn_from_));
  }
  for (const Stream& stream : streams_) place.forked_.push_back(stream.forked);
  return place;
}

// Streams that were added later stay where they are.
void RngTracker::go_to(const Place& place) {
  const std::size_t streams = place.forked_.size();
  at::Generator generator = default_generator(device_);
  if (device_.is_cpu()) {
    for (std::size_t i = 0; i < streams; ++i) call_set_state(streams_[i].generator, place.states_[i]);
    call_set_state(generator, place.states_.back());
  } else {
    const std::lock_guard lock(generator.mutex());
    generator.graphsafe_set_state(place.drawn_from_);
    for (std::size_t i = 0; i < streams; ++i) set_generator_state(streams_[i].generator, place.states_[i]);
    set_generator_state(place.drawn_from_, place.states_.back());
  }
  for (std::size_t i = 0; i < streams; ++i) streams_[i].forked = place.forked_[i];
}

RngTracker::Place RngTracker::place() const {
  for (const Stream& stream : streams_) refuse_unknown(stream, "saved");
  return here();
}

RngTracker::Rewind RngTracker::rewind(const Place& place) {
  if (place.tracker_ != this) {
    throw UsageError({.what = "the place of random streams is that of another RngTracker",
                      .fix = "rewind() the tracker whose place() it is"});
  }
  for (const Stream& stream : streams_) refuse_unknown(stream, "set back");
  if (!device_.is_cpu() && place.capture_ != current_capture(device_)) {
    throw CaptureError({.what = "random streams are set back to a place that was taken in another capture, or in none",
                        .fix = "capture forward and backward pass as one graph, or neither of them",
                        .rule = "PG605"});
  }
  return {*this, place};
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
    states.push_back({.name = stream.name, .tensor = generator_state(stream.generator)});
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
  const std::int64_t bytes = generator_state(default_generator(device_)).numel();
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
