#include <pianola/callable/eager_run.hpp>

#include <pianola/callable/input_gradients.hpp>
#include <pianola/core/error.hpp>
#include <pianola/trace/collective_work.hpp>
#include <pianola/trace/op_stream.hpp>

#include <ATen/SequenceNumber.h>

#include <utility>

namespace pianola::callable {
namespace {

int& open_runs() {
  thread_local int open = 0;
  return open;
}

class OpenRun {
 public:
  OpenRun() { ++open_runs(); }
  OpenRun(const OpenRun&) = delete;
  OpenRun& operator=(const OpenRun&) = delete;
  ~OpenRun() { --open_runs(); }
};

}  // namespace

EagerRun::EagerRun(std::span<const at::Tensor> inputs, const std::function<void()>& run,
                   std::shared_ptr<HostParts> parts, std::shared_ptr<graph::NumberUses> numbers,
                   std::shared_ptr<graph::Islands> islands, std::shared_ptr<CheckedReads> reads, bool notes_memory)
    : first_node_(at::sequence_number::peek()),
      input_holders_(inputs),
      watch_(inputs),
      parts_(std::move(parts)),
      numbers_(std::move(numbers)),
      islands_(std::move(islands)),
      reads_(std::move(reads)) {
  const OpenRun open;
  const HostParts::Open open_parts(*parts_);
  const graph::Islands::Open open_islands(*islands_);
  trace::BegunCollectives collectives;
  std::vector<trace::OpObserver*> observers = {&watch_,      &given_,        &host_,      &log_,
                                               parts_.get(), numbers_.get(), &collectives};
  if (reads_ != nullptr) observers.push_back(reads_.get());
  std::optional<trace::BlockLog> memory;
  if (notes_memory) observers.push_back(&memory.emplace());
  const trace::OpStream stream(std::move(observers));
  std::optional<CheckedReads::Open> open_reads;
  if (reads_ != nullptr) open_reads.emplace(*reads_);
  const InputGradients gradients(inputs);
  run();
  if (memory) {
    memory_ = {.blocks = memory->blocks(),
               .operations = memory->operations(),
               .sees_cpu = trace::BlockLog::sees(c10::kCPU),
               .sees_cuda = trace::BlockLog::sees(c10::kCUDA)};
  }
  open_reads.reset();
  collectives.let_go();
  spared_inputs_ = gradients.spared();
  odd_work_ = stream.odd_work();
  communication_ = stream.communication();
  released_nodes_ = stream.released_nodes();
  diagnosis_ = stream.failure();
  if (diagnosis_) failure_ = Error(*diagnosis_).what();
}

std::optional<memory::StepRun> EagerRun::memory(c10::Device device) const {
  if (!memory_ || !(device.is_cpu() ? memory_->sees_cpu : memory_->sees_cuda)) return std::nullopt;
  return trace::run_of(trace::blocks_on(device, memory_->blocks), memory_->operations);
}

bool EagerRun::is_open() noexcept { return open_runs() != 0; }

}  // namespace pianola::callable
