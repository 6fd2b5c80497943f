#include <pianola/audit/session.hpp>

#include <pianola/audit/checks/checks.hpp>
#include <pianola/audit/cuda_side.hpp>
#include <pianola/audit/generator_position.hpp>
#include <pianola/audit/leaf_watch.hpp>
#include <pianola/audit/observed_runs.hpp>
#include <pianola/audit/run_observer.hpp>
#include <pianola/audit/trial.hpp>
#include <pianola/core/error.hpp>
#include <pianola/core/number_check.hpp>
#include <pianola/graph/device_check.hpp>
#include <pianola/graph/generator_states.hpp>
#include <pianola/graph/open_capture.hpp>
#include <pianola/graph/run_memory.hpp>
#include <pianola/trace/block_log.hpp>
#include <pianola/trace/call_site.hpp>
#include <pianola/trace/observer_failure.hpp>
#include <pianola/trace/plain_check.hpp>
#include <pianola/trace/tensors_of.hpp>
#include <pianola/trace/trace_recorder.hpp>
#include <pianola/trace/write_set.hpp>

#include <ATen/Context.h>
#include <c10/util/Exception.h>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace pianola::auditing {
namespace {

void check(const AuditOptions& options) {
  check_at_least(2, "iterations", options.iterations);
  check_at_least(0, "warmup", options.warmup);
  check_at_least(0, "capture_warmup", options.capture_warmup);
  for (const at::Generator& generator : options.generators) {
    if (!generator.defined()) throw UsageError({.what = "an entry of 'generators' is undefined"});
  }
  if (graph::capture_is_open()) {
    throw UsageError(
        {.what = "a capture is open on this thread already", .fix = "audit the step before it is captured"});
  }
}

// Those that a capture on this machine would know of.
std::vector<at::Generator> known_generators(const AuditOptions& options) {
  std::vector<at::Generator> generators = {at::globalContext().defaultGenerator(c10::kCPU)};
  const bool cuda = options.device ? options.device->is_cuda() : cuda_is_in_use();
  if (cuda) generators.push_back(at::globalContext().defaultGenerator(options.device.value_or(c10::kCUDA)));
  generators.insert(generators.end(), options.generators.begin(), options.generators.end());
  return generators;
}

bool is_out_of_memory(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const c10::OutOfMemoryError&) {
    return true;
  } catch (...) {  // any other, of any language
  }
  return false;
}

// The operation that began last in a warm-up run: where the step threw, if it did.
class LastOperation final : public trace::OpObserver {
 public:
  explicit LastOperation(bool sources) : sources_(sources) {}
  [[nodiscard]] trace::OpInterest interest() const override { return {.outputs = false}; }
  void on_op_begin(const trace::OpSpan& /*op*/) override {
    if (sources_) site_ = trace::CallSite::here();
  }
  [[nodiscard]] SourcePlace place() const { return site_.place(); }

 private:
  bool sources_;
  trace::CallSite site_;
};

struct Thrown {
  std::optional<std::size_t> run;  // nothing: a warm-up run
  std::string message;
  SourcePlace place;
  bool out_of_memory;
};

}  // namespace

struct Session::Impl {
  // What belongs to the run that is open. The stream goes first when it ends.
  struct Open {
    Open(Impl& audit, const ObservedRun* like)
        : recorder({.call_sites = audit.options.sources}),
          observer(recorder, audit.leaves, audit.generators, audit.options.restore ? &audit.written : nullptr, like) {}

    void note_names(const std::vector<NamedTensor>& tensors) {
      for (const auto& [name, tensor] : tensors) {
        if (!tensor.defined() || trace::oddity_in_step(tensor) != trace::Oddity::none || !tensor.has_storage())
          continue;
        names.push_back({.name = name, .memory = Memory::of(tensor), .address = trace::address_of(tensor)});
      }
    }

    TraceRecorder recorder;
    RunObserver observer;
    std::optional<graph::RunMemory> memory;
    std::vector<GivenInput> inputs;
    std::vector<NamedMemory> names;
    std::optional<trace::OpStream> stream;
  };

  explicit Impl(AuditOptions chosen) : options(std::move(chosen)) {
    check(options);
    if (options.device) options.device = graph::usable_device(*options.device);
    generators = known_generators(options);
    if (!options.restore) return;
    generator_states.remember(generators);
    for (const auto& [name, tensor] : options.names) {
      if (tensor.defined() && tensor.is_leaf() && tensor.requires_grad()) gradients.emplace_back(tensor, tensor.grad());
    }
  }

  void begin(const RunBoundary& boundary);
  void watch_memory();
  void note_memory(ObservedRun& run);
  void end(const std::vector<at::Tensor>& results, bool threw);
  void note_results(ObservedRun& run, const std::vector<at::Tensor>& results) const;
  void note_kept(ObservedRun& run) const;
  void add_thrown(const ObservedRuns& observed, AuditReport& report) const;
  void put_back();
  [[nodiscard]] c10::Device device() const { return options.device.value_or(busiest_device(runs)); }

  AuditOptions options;
  std::vector<at::Generator> generators;
  trace::WriteSet written;
  graph::GeneratorStates generator_states;
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients;  // of leaves with a name: a step may drop one unseen
  LeafWatch leaves;
  std::optional<CudaSide> cuda;
  std::optional<LastOperation> last_of_warmup;
  std::optional<trace::OpStream> warmup;
  std::optional<Open> open;
  std::vector<ObservedRun> runs;
  bool warmed_up = false;
  bool is_put_back = false;
  std::vector<Finding> added;
  std::vector<std::string> notes;
  std::optional<Trial> trial;
  std::optional<Thrown> thrown;
};

void Session::Impl::begin(const RunBoundary& boundary) {
  if (!cuda) cuda.emplace(options.device, options.sources);
  open.emplace(*this, runs.empty() ? nullptr : &runs.back());
  for (const at::Tensor& input : boundary.inputs) {
    const bool plain = input.defined() && trace::oddity_in_step(input) == trace::Oddity::none;
    open->inputs.push_back({.memory = plain ? Memory::of(input) : Memory(),
                            .address = plain ? trace::address_of(input) : nullptr,
                            .requires_grad = plain && input.requires_grad()});
  }
  open->note_names(boundary.names);
  open->note_names(options.names);
  watch_memory();
  std::vector<trace::OpObserver*> observers = {&open->recorder, &open->observer};
  if (open->memory) observers.push_back(&*open->memory);
  if (options.restore) observers.push_back(&generator_states);
  if (cuda->observer() != nullptr) observers.push_back(cuda->observer());
  cuda->start();
  open->stream.emplace(std::move(observers));
}

// Of the last run, whose memory a graph would have; where it may be known what is left for that.
void Session::Impl::watch_memory() {
  if (runs.size() + 1 < static_cast<std::size_t>(options.iterations)) return;
  const bool on_cuda = options.device ? options.device->is_cuda() : cuda_is_in_use();
  if (options.free_memory) {
    open->memory.emplace(graph::RunMemory::Of::with_frees);
  } else if (on_cuda) {
    open->memory.emplace(graph::RunMemory::Of::cuda);
  }
}

// Before others free what it made.
void Session::Impl::note_memory(ObservedRun& run) {
  if (!open->memory || run.threw) return;
  const c10::Device where = options.device.value_or(busiest_device({&run, 1}));
  if (where.is_cpu() && !options.free_memory) return;
  if (trace::BlockLog::sees(where)) {
    run.memory = open->memory->on(where);
  } else {
    notes.emplace_back("whether a graph finds room is not known: another allocator is in the place of torch's");
  }
}

void Session::Impl::end(const std::vector<at::Tensor>& results, bool threw) {
  if (!open) return;
  std::optional<trace::OddWork> odd_work = open->stream->odd_work();
  const std::optional<Diagnosis> failure = open->stream ? open->stream->failure() : std::nullopt;
  open->stream.reset();
  cuda->stop();
  if (failure) {
    open.reset();
    trace::throw_failure(*failure);
  }
  ObservedRun run = open->observer.take();
  run.odd_work = std::move(odd_work);
  run.trace = open->recorder.take();
  run.inputs = std::move(open->inputs);
  run.names = std::move(open->names);
  run.threw = threw;
  note_memory(run);
  open.reset();
  note_results(run, results);
  note_kept(run);
  cuda->note(run, runs.size());
  runs.push_back(std::move(run));
}

void Session::Impl::note_results(ObservedRun& run, const std::vector<at::Tensor>& results) const {
  for (const at::Tensor& result : results) {
    ResultNote note;
    if (result.defined() && trace::oddity_in_step(result) == trace::Oddity::none) {
      note.memory = Memory::of(result);
      note.dtype = result.scalar_type();
      note.sizes = result.sizes().vec();
    }
    run.results.push_back(std::move(note));
  }
}

// What the run before made, and this one should have been able to overwrite.
void Session::Impl::note_kept(ObservedRun& run) const {
  if (runs.empty()) return;
  const ObservedRun& before = runs.back();
  for (const ResultNote& result : before.results) run.kept_results.push_back(result.memory.alive());
  for (std::size_t i = 0; i < before.survivors.size(); ++i) {
    if (before.survivors[i].memory.alive()) run.kept_survivors.push_back(i);
  }
  for (std::size_t leaf = 0; leaf < std::min(before.gradients.size(), run.gradients.size()); ++leaf) {
    const Memory& gradient = before.gradients[leaf].after;
    const bool replaced = gradient.known() && run.gradients[leaf].after.known() &&
                          run.gradients[leaf].after.identity != gradient.identity;
    if (replaced && gradient.alive() && before.find_survivor(gradient.identity) != nullptr) {
      run.kept_gradients.push_back(leaf);
    }
  }
}

// Unless the line where it threw, as its caller knows it, has a finding that breaks a capture.
void Session::Impl::add_thrown(const ObservedRuns& observed, AuditReport& report) const {
  if (!thrown) return;
  Finding finding = Finding::of(thrown->out_of_memory ? "PG908" : "PG1202");
  finding.severity = Severity::breaks_capture;
  finding.place = thrown->place;
  finding.evidence = thrown->message;
  if (thrown->run) finding.iteration = static_cast<int>(*thrown->run) + 1;
  if (thrown->run && !observed.run(*thrown->run).notes.empty()) {
    const OpAt last{*thrown->run, observed.run(*thrown->run).notes.size() - 1};
    finding.module = observed.module(last);
    if (!finding.place.known()) finding.place = observed.own_place(last);
  }
  const bool explained = std::any_of(report.findings().begin(), report.findings().end(), [&](const Finding& known) {
    return known.severity == Severity::breaks_capture && thrown->place.known() && known.place == thrown->place;
  });
  if (!explained) report.add(std::move(finding));
}

void Session::Impl::put_back() {
  if (is_put_back) return;
  is_put_back = true;
  warmup.reset();
  if (open) open->stream.reset();
  open.reset();
  if (!options.restore) return;
  written.restore();
  for (const auto& [leaf, gradient] : gradients) leaf.mutable_grad() = gradient;
  generator_states.restore();
}

Session::Session(AuditOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}

Session::~Session() {
  try {
    impl_->put_back();
  } catch (const std::exception& error) {
    TORCH_WARN("pianola: could not put back all that an audited step wrote: ", error.what());
  }
}

void Session::begin_warmup() {
  impl_->warmed_up = true;
  std::vector<trace::OpObserver*> observers = {&impl_->last_of_warmup.emplace(impl_->options.sources)};
  if (impl_->options.restore) observers.insert(observers.end(), {&impl_->written, &impl_->generator_states});
  impl_->warmup.emplace(std::move(observers));
}

void Session::end_warmup() {
  const std::optional<Diagnosis> failure = impl_->warmup ? impl_->warmup->failure() : std::nullopt;
  impl_->warmup.reset();
  if (failure) trace::throw_failure(*failure);
}

void Session::begin(RunBoundary boundary) { impl_->begin(boundary); }

void Session::end(const std::vector<at::Tensor>& results) { impl_->end(results, false); }

void Session::end_by(std::exception_ptr error, const std::string& message, const SourcePlace& place) {
  impl_->warmup.reset();
  impl_->thrown = {.run = {}, .message = message, .place = place, .out_of_memory = is_out_of_memory(error)};
  if (impl_->open) {
    impl_->thrown->run = impl_->runs.size();
    impl_->end({}, true);
  } else if (!place.known() && impl_->last_of_warmup) {
    impl_->thrown->place = impl_->last_of_warmup->place();
  }
}

void Session::enter_module(const std::string& path) {
  if (impl_->open) impl_->open->observer.enter_module(path);
}

void Session::leave_module() {
  if (impl_->open) impl_->open->observer.leave_module();
}

std::uint64_t Session::operations() const noexcept { return impl_->open ? impl_->open->observer.operations() : 0; }

void Session::add(Finding finding) { impl_->added.push_back(std::move(finding)); }

void Session::add_note(std::string note) { impl_->notes.push_back(std::move(note)); }

void Session::try_capture(const std::function<void()>& step, const std::function<void()>& between) {
  if (impl_->thrown || impl_->runs.empty() || impl_->runs.back().odd_work) return;  // it would be refused
  impl_->trial = try_capture_of(impl_->device(), step, between, impl_->runs.back().trace, impl_->options);
}

namespace {

Findings findings_of(const ObservedRuns& observed) {
  Findings findings;
  for (const auto check_runs :
       {check_host_reads, check_devices, check_pinned_buffers, check_numbers, check_moved_memory, check_gradients,
        check_control_flow, check_random, check_results, check_modes, check_plain, check_work}) {
    for (Finding& finding : check_runs(observed)) findings.push_back(std::move(finding));
  }
  // What adds to a gradient on autograd's thread has no line; the gradient's own finding has.
  const auto is_dropped_gradient = [](const Finding& one) { return one.rule->id == "PG403"; };
  if (std::any_of(findings.begin(), findings.end(),
                  [&](const Finding& one) { return is_dropped_gradient(one) && one.place.known(); })) {
    std::erase_if(findings, [&](const Finding& one) { return is_dropped_gradient(one) && !one.place.known(); });
  }
  return findings;
}

}  // namespace

AuditReport Session::finish() {
  const c10::Device device = impl_->device();
  const ObservedRuns observed(std::move(impl_->runs), device, impl_->warmed_up);
  impl_->runs.clear();
  AuditReport report;
  report.subject = impl_->options.subject;
  report.device = device.str();
  report.iterations = static_cast<int>(observed.size());
  if (observed.size() > 0) report.operations = observed.run(observed.size() - 1).notes.size();
  report.cuts = find_cuts(observed);

  // Who sees the compiler at work knows more.
  const bool compiles = std::any_of(impl_->added.begin(), impl_->added.end(),
                                    [](const Finding& finding) { return finding.rule->id == "PG1005"; });
  for (Finding& finding : findings_of(observed)) {
    if (!compiles || finding.rule->id != "PG1005") report.add(std::move(finding));
  }
  if (impl_->cuda) {
    for (Finding& finding : impl_->cuda->findings(observed)) report.add(std::move(finding));
    for (std::string& note : impl_->cuda->notes()) report.add_note(std::move(note));
  }
  for (Finding& finding : impl_->added) report.add(std::move(finding));
  impl_->add_thrown(observed, report);
  for (std::string& note : impl_->notes) report.add_note(std::move(note));
  if (impl_->trial) add_trial(*impl_->trial, observed, report);
  impl_->put_back();  // which gives memory back
  const bool has_run_out = std::any_of(report.findings().begin(), report.findings().end(),
                                       [](const Finding& finding) { return finding.rule->id == "PG908"; });
  if (has_run_out) return report;
  for (Finding& finding : check_memory(observed, impl_->options.free_memory)) report.add(std::move(finding));
  return report;
}

}  // namespace pianola::auditing
