#include <pianola/graph/memory_forecast.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/number_check.hpp>
#include <pianola/core/report_format.hpp>
#include <pianola/graph/device_check.hpp>
#include <pianola/graph/open_capture.hpp>
#include <pianola/memory/allocator_model.hpp>
#include <pianola/trace/arguments.hpp>
#include <pianola/trace/block_log.hpp>
#include <pianola/trace/op_info.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/step_memory.hpp>
#include <pianola/trace/tensors_of.hpp>
#include <pianola/trace/trace_recorder.hpp>

#include <ATen/Context.h>
#if PIANOLA_WITH_CUDA
#include <pianola/graph/cuda/free_memory.hpp>
#endif

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace pianola {
namespace {

constexpr std::uint64_t kNodeBytes = 1600;  // of graphs of 4,000 small kernels on an H200
constexpr std::size_t kMostUsers = 12;      // of a report

using trace::StepBlock;

// Of memory that was there before and that the step writes, whole storages: so a capture copies them.
class WrittenStorages final : public trace::OpObserver {
 public:
  explicit WrittenStorages(c10::Device device) : device_(device) {}

  void on_op_begin(const trace::OpSpan& op) override {
    trace::for_each_argument(*op.info, op.inputs, [&](const at::Tensor& tensor, bool written) {
      const c10::StorageImpl* const storage = trace::storage_of(tensor);
      if (!written || storage == nullptr || tensor.device() != device_ || op.memory->made(tensor)) return;
      if (seen_.insert(storage).second) bytes_ += memory::in_whole_units(storage->nbytes());
    });
  }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  c10::Device device_;
  std::set<const c10::StorageImpl*> seen_;
  std::uint64_t bytes_ = 0;
};

// What a run showed.
struct Run {
  std::vector<StepBlock> blocks;
  OpTrace trace;
  std::uint64_t written = 0;
};

Run observe(const std::function<void()>& step, c10::Device device) {
  if (device.is_cuda())
    at::globalContext().lazyInitDevice(c10::kCUDA);  // the hook is put into an allocator that is there
  trace::BlockLog log;
  WrittenStorages written(device);
  TraceRecorder recorder({.call_sites = true});
  {
    const trace::OpStream stream({&log, &written, &recorder});
    step();
    stream.check();
  }
  return {.blocks = log.blocks(device), .trace = recorder.take(), .written = written.bytes()};
}

const OpRecord* operation(const OpTrace& trace, std::int32_t number) {
  return number < 0 || static_cast<std::size_t>(number) >= trace.ops().size()
             ? nullptr
             : &trace.ops()[static_cast<std::size_t>(number)];
}

std::string in_words(const OpTrace& trace, std::int32_t number) {
  const OpRecord* const op = operation(trace, number);
  if (op == nullptr) return "before the first operation";
  const std::string place = trace.place(*op);
  return place.empty() ? trace.name(*op) : fmt::format("{}, {}", trace.name(*op), place);
}

// Each operation's words are looked for once: that reads debug information.
class Owners {
 public:
  explicit Owners(const OpTrace& trace) : trace_(trace) {}

  std::uint32_t owner_of(const StepBlock& block) {
    const auto [known, is_new] = of_operation_.try_emplace(block.made_in, 0);
    if (!is_new) return known->second;
    const auto [place, is_new_place] =
        of_words_.try_emplace(in_words(trace_, block.made_in), static_cast<std::uint32_t>(words_.size()));
    if (is_new_place) words_.push_back(place->first);
    return known->second = place->second;
  }
  [[nodiscard]] std::vector<std::string> take() { return std::move(words_); }

 private:
  const OpTrace& trace_;
  std::map<std::int32_t, std::uint32_t> of_operation_;
  std::map<std::string, std::uint32_t> of_words_;
  std::vector<std::string> words_;
};

std::uint64_t bytes_of_executable(const OpTrace& trace) {
  const auto computes = [](const OpRecord& op) { return !op.info->is_view && !op.info->is_empty; };
  return kNodeBytes * static_cast<std::uint64_t>(std::ranges::count_if(trace.ops(), computes));
}

void note_free_memory([[maybe_unused]] MemoryForecast& forecast) {
#if PIANOLA_WITH_CUDA
  if (!forecast.device.is_cuda()) return;
  const graph::FreeMemory free = graph::free_memory_of(forecast.device.index());
  forecast.free = free.of_driver;
  forecast.cached = free.cached;
  forecast.returnable = free.returnable;
#endif
}

std::vector<MemoryUser> users_at(memory::Moment moment, const memory::Picture& picture) {
  std::vector<MemoryUser> users(picture.owners.size());
  for (std::size_t i = 0; i < users.size(); ++i) users[i].place = picture.owners[i];
  for (const memory::PicturedBlock& block : picture.blocks) {
    if (block.life.made > moment || block.life.freed <= moment) continue;
    users[block.owner].bytes += block.life.bytes;
    ++users[block.owner].blocks;
  }
  std::erase_if(users, [](const MemoryUser& user) { return user.blocks == 0; });
  std::ranges::stable_sort(users, std::ranges::greater{}, &MemoryUser::bytes);
  return users;
}

MemoryForecast judge(Run run, c10::Device device) {
  MemoryForecast forecast;
  forecast.device = device;
  forecast.operations = run.trace.ops().size();
  forecast.blocks = run.blocks.size();
  std::vector<memory::Block> lives;
  Owners owners(run.trace);
  for (StepBlock& block : run.blocks) {
    block.life.bytes = memory::in_whole_units(block.life.bytes);
    lives.push_back(block.life);
    forecast.handed_out += block.life.bytes;
    if (block.life.freed == memory::Block::kNever) forecast.left += block.life.bytes;
    forecast.picture.blocks.push_back(
        {.life = block.life, .owner = owners.owner_of(block), .made_in = block.made_in, .freed_in = block.freed_in});
  }
  forecast.picture.title = fmt::format("Memory of a step of {} operations on {}", forecast.operations,
                                       device.is_cpu() ? "the CPU" : device.str());
  forecast.picture.owners = owners.take();
  forecast.picture.plan = memory::plan_offsets(lives);
  forecast.picture.pool = forecast.pool = memory::pool_bytes(lives);
  forecast.planned = forecast.picture.plan.bytes;
  forecast.bound = forecast.picture.plan.bound;
  forecast.copied = run.written;
  forecast.executable = bytes_of_executable(run.trace);
  note_free_memory(forecast);
  const memory::Moment peak = memory::peak_of(lives).at;
  forecast.at_peak = users_at(peak, forecast.picture);
  const auto made_last = std::ranges::find(lives, peak, &memory::Block::made);
  if (made_last != lives.end()) {
    const auto which = static_cast<std::size_t>(made_last - lives.begin());
    forecast.peak_place = forecast.picture.owners[forecast.picture.blocks[which].owner];
  }
  return forecast;
}

}  // namespace

std::optional<bool> MemoryForecast::fits() const {
  if (!free) return std::nullopt;
  const std::uint64_t of_driver = pool + executable;
  return of_driver <= *free && of_driver + copied <= *free + cached;
}

std::string MemoryForecast::verdict() const {
  if (!free) return "Whether it fits is not known: free memory is a GPU's, and this step runs on the CPU.";
  const auto in_bytes = [](std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  const std::string numbers =
      fmt::format("a capture takes {} of the driver and {} for copies, and the driver has {} left.",
                  in_bytes(pool + executable), in_bytes(copied), in_bytes(*free));
  if (*fits()) return "It fits: " + numbers;
  const bool would_fit = pool + executable <= *free + returnable && pool + executable + copied <= *free + cached;
  if (!would_fit) return "It does not fit: " + numbers;
  return fmt::format("It does not fit yet: {} torch.cuda.empty_cache() gives {} back.", numbers, in_bytes(returnable));
}

Report MemoryForecast::report() const {
  Report report("Memory of a graph");
  report.fact("device", "device", device.str())
      .fact("operations", "operations", operations)
      .fact("blocks", "blocks handed out", blocks)
      .fact("handed_out_bytes", "bytes of these", handed_out, "bytes")
      .fact("bound_bytes", "in use at most", bound, "bytes")
      .fact("pool_bytes", "pool", pool, "bytes")
      .fact("planned_bytes", "pool, planned", planned, "bytes")
      .fact("left_bytes", "in use at the end", left, "bytes")
      .fact("copied_bytes", "copied aside by the capture", copied, "bytes")
      .fact("executable_bytes", "executable, about", executable, "bytes")
      .fact("free_bytes", "left to the driver", free ? ReportValue(*free) : ReportValue(), "bytes")
      .fact("cached_bytes", "unused in torch's allocator", free ? ReportValue(cached) : ReportValue(), "bytes")
      .fact("peak", "most is in use in", peak_place);
  report.list("verdict", "Verdict", {verdict()});
  ReportTable users("at_peak", "In use there", {{"made at"}, {"blocks"}, {"bytes", "bytes", "bytes"}});
  for (std::size_t i = 0; i < std::min(at_peak.size(), kMostUsers); ++i) {
    users.row({at_peak[i].place, at_peak[i].blocks, at_peak[i].bytes});
  }
  report.table(std::move(users));
  return report;
}

MemoryForecast predict_memory(const std::function<void()>& step, c10::Device any_device, int warmup) {
  check_at_least(0, "warmup", warmup);
  const c10::Device device = graph::usable_device(any_device);
  if (graph::capture_is_open()) {
    throw UsageError({.what = "predict_memory() was called while a capture is open on this thread",
                      .fix = "call it before: it runs the step"});
  }
  for (int i = 0; i < warmup; ++i) step();
  return judge(observe(step, device), device);
}

}  // namespace pianola
