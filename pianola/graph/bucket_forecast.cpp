#include <pianola/graph/bucket_forecast.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/report_format.hpp>
#include <pianola/graph/allocator_settings.hpp>
#include <pianola/graph/run_memory.hpp>
#include <pianola/memory/allocator_model.hpp>
#include <pianola/memory/offset_plan.hpp>
#include <pianola/memory/region_space.hpp>
#include <pianola/trace/block_log.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace pianola {
namespace {

// When a bucket's runs were, by the log of all.
struct BucketRuns {
  memory::Moment begin = 0;  // of the warm-up
  memory::Moment observed = 0;
  memory::Moment end = 0;
};

// A region that one graph after the other plans in, as captures into a pool do.
class SharedByBuckets {
 public:
  // Around what earlier ones left that was still held when this one's warm-up began: a capture puts that back.
  void plan(const memory::StepRun& run, const BucketRuns& when) {
    std::erase_if(left_, [&](const Left& one) { return one.freed < when.begin; });
    std::vector<memory::Piece> taken;
    taken.reserve(left_.size());
    for (const Left& one : left_) taken.push_back(one.piece);
    std::vector<memory::Block> blocks = run.blocks;
    for (memory::Block& block : blocks) {
      block.bytes = memory::in_whole_units(block.bytes);
      if (block.freed >= when.end) block.freed = memory::Block::kNever;
    }
    const memory::OffsetPlan plan = memory::plan_offsets(blocks, taken);
    bytes_ = memory::grown_region(bytes_, plan.bytes);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (blocks[i].freed != memory::Block::kNever) continue;
      left_.push_back({.piece = {.address = plan.offsets[i], .bytes = blocks[i].bytes}, .freed = run.blocks[i].freed});
    }
  }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  struct Left {
    memory::Piece piece;
    memory::Moment freed;
  };
  std::vector<Left> left_;
  std::uint64_t bytes_ = 0;
};

std::vector<trace::StepBlock> made_between(memory::Moment begin, memory::Moment end,
                                           const std::vector<trace::StepBlock>& blocks) {
  const auto first = std::ranges::lower_bound(blocks, begin, {}, [](const auto& block) { return block.life.made; });
  const auto last = std::ranges::lower_bound(blocks, end, {}, [](const auto& block) { return block.life.made; });
  return {first, last};
}

// Where a pool shares none: each capture has one of its own, which lives as long as its graph.
class RegionsOfBuckets {
 public:
  explicit RegionsOfBuckets(const memory::AllocatorSettings& settings) : settings_(settings) {}

  void plan(const memory::StepRun& run, const BucketRuns& when) {
    const std::uint64_t bytes = memory::plan_offsets(run.blocks).bytes;
    if (bytes != 0) regions_.push_back({.made = when.observed, .bytes = bytes});
  }
  [[nodiscard]] std::uint64_t bytes() const { return memory::pool_bytes(regions_, settings_); }

 private:
  memory::AllocatorSettings settings_;
  std::vector<memory::Block> regions_;
};

// What other streams ask for lies outside of the regions.
template <class Regions>
std::uint64_t planned_bytes(Regions regions, const std::vector<trace::StepBlock>& blocks,
                            const std::vector<BucketRuns>& runs) {
  std::uint64_t outside = 0;
  for (const BucketRuns& when : runs) {
    auto [main, others] =
        memory::by_main_stream(trace::run_of(made_between(when.observed, when.end, blocks), /*operations=*/{}));
    regions.plan(main, when);
    for (memory::Block& block : others.blocks) block.bytes = memory::in_whole_units(block.bytes);
    outside += memory::pool_bytes(others.blocks, graph::allocator_settings());
  }
  return regions.bytes() + outside;
}

// With expandable segments torch takes no segments of others, so that pools share no region.
std::uint64_t shared_bytes(const std::vector<trace::StepBlock>& blocks, const std::vector<BucketRuns>& runs) {
  const memory::AllocatorSettings settings = graph::allocator_settings();
  if (settings.kind == memory::SegmentKind::fixed) return planned_bytes(SharedByBuckets(), blocks, runs);
  return planned_bytes(RegionsOfBuckets(settings), blocks, runs);
}

// As callable's Note [Static inputs that graphs share] has it: of each place and dtype the largest.
std::uint64_t shared_inputs(const std::vector<std::vector<at::Tensor>>& inputs, c10::Device device) {
  std::map<std::pair<std::size_t, c10::ScalarType>, std::uint64_t> largest;
  for (const std::vector<at::Tensor>& of_bucket : inputs) {
    for (std::size_t i = 0; i < of_bucket.size(); ++i) {
      const at::Tensor& input = of_bucket[i];
      if (!input.defined() || input.device() != device || input.numel() == 0) continue;
      std::uint64_t& most = largest[{i, input.scalar_type()}];
      most = std::max<std::uint64_t>(most, memory::in_whole_units(input.nbytes()));
    }
  }
  std::uint64_t bytes = 0;
  for (const auto& [place, most] : largest) bytes += most;
  return bytes;
}

MemoryForecast in_pools_of(std::uint64_t bytes, const BucketForecast& set) {
  MemoryForecast all;
  all.device = set.device;
  all.pool = bytes;
  all.copied = set.copied + set.inputs;  // torch's allocator has room for both
  all.executable = set.executables;
  all.free = set.free;
  all.cached = set.cached;
  all.returnable = set.returnable;
  return all;
}

}  // namespace

std::optional<bool> BucketForecast::fits() const { return in_pools_of(shared, *this).fits(); }

std::optional<bool> BucketForecast::fits_apart() const { return in_pools_of(pools, *this).fits(); }

std::string BucketForecast::verdict() const {
  if (!free) return "Whether they fit is not known: free memory is a GPU's, and these steps run on the CPU.";
  const auto in_bytes = [](std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  const MemoryForecast together = in_pools_of(shared, *this);
  const std::string numbers = fmt::format(
      "with one pool that plans, the graphs take {} of the driver{}, a capture up to {} for copies, and the "
      "driver has {} left.",
      in_bytes(shared + executables), inputs == 0 ? "" : fmt::format(" and {} for inputs", in_bytes(inputs)),
      in_bytes(copied), in_bytes(*free));
  if (!*together.fits()) {
    if (!*together.would_fit()) return "They do not fit: " + numbers;
    return fmt::format("They do not fit yet: {} torch.cuda.empty_cache() gives {} back.", numbers,
                       in_bytes(returnable));
  }
  if (*fits_apart()) return "They fit: " + numbers;
  return fmt::format("They fit: {} With pools of their own they would not.", numbers);
}

Report BucketForecast::report() const {
  Report report("Memory of the graphs of buckets");
  report.fact("device", "device", device.str())
      .fact("pools_bytes", "pools of their own", pools, "bytes")
      .fact("shared_bytes", "one pool that plans", shared, "bytes")
      .fact("input_bytes", "static inputs, shared", inputs, "bytes")
      .fact("copied_bytes", "copied aside by a capture", copied, "bytes")
      .fact("executable_bytes", "executables, about", executables, "bytes")
      .fact("free_bytes", "left to the driver", free ? ReportValue(*free) : ReportValue(), "bytes")
      .fact("cached_bytes", "unused in torch's allocator", free ? ReportValue(cached) : ReportValue(), "bytes");
  report.list("verdict", "Verdict", {verdict()});
  ReportTable each("buckets", "Each alone",
                   {{"bucket"},
                    {"bound_bytes", "in use at most", "bytes"},
                    {"left_bytes", "at the end", "bytes"},
                    {"pool_bytes", "pool", "bytes"},
                    {"planned_bytes", "planned", "bytes"}});
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    each.row({names[i], buckets[i].bound, buckets[i].left, buckets[i].pool, buckets[i].planned});
  }
  report.table(std::move(each));
  return report;
}

BucketForecast predict_buckets(const std::function<void(std::size_t bucket)>& step,
                               const std::vector<std::string>& names, c10::Device any_device, int warmup,
                               const std::vector<std::vector<at::Tensor>>& inputs) {
  if (names.empty()) throw UsageError({.what = "there are no buckets", .fix = "name one at least"});
  BucketForecast set;
  set.device = graph::ready_to_predict("predict_buckets()", any_device, warmup);
  set.names = names;
  set.inputs = shared_inputs(inputs, set.device);
  trace::BlockLog all;  // what one leaves may be freed by another
  std::vector<BucketRuns> runs;
  for (std::size_t bucket = 0; bucket < names.size(); ++bucket) {
    BucketRuns& when = runs.emplace_back();
    when.begin = all.now();
    for (int i = 0; i < warmup; ++i) step(bucket);
    when.observed = all.now();
    const MemoryForecast& alone = set.buckets.emplace_back(graph::forecast_of_run([&] { step(bucket); }, set.device));
    when.end = all.now();
    set.pools += alone.pool;
    set.copied = std::max(set.copied, alone.copied);
    set.executables += alone.executable;
  }
  set.shared = shared_bytes(all.blocks(set.device), runs);
  set.free = set.buckets.back().free;
  set.cached = set.buckets.back().cached;
  set.returnable = set.buckets.back().returnable;
  return set;
}

}  // namespace pianola
