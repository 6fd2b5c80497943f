#include <pianola/training/static_inputs.hpp>

#include <pianola/core/error.hpp>
#include <pianola/graph/device_check.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/graph/process_mark.hpp>
#include <pianola/trace/quiet_scope.hpp>
#include <pianola/training/batch_plan.hpp>
#include <pianola/training/batch_transfer.hpp>

#include <fmt/format.h>

#include <atomic>
#include <exception>
#include <optional>
#include <string_view>
#include <utility>

namespace pianola {
namespace {

using training::BatchPlan;
using training::BatchTransfer;
using training::PaddingPlan;

void refuse_in_capture(std::string_view call) {
  if (!is_capturing()) return;
  throw UsageError({.what = fmt::format("{}() of StaticInputs was called inside a capture", call),
                    .fix = "move batches between replays: the captured step only reads the static tensors"});
}

// The elements of a batch's padded tensors, and what padding adds to them.
BucketUse use_of(const PaddingPlan& padding, const std::vector<at::Tensor>& sources,
                 const std::vector<at::Tensor>& statics) {
  BucketUse use{.batches = 1};
  for (std::size_t leaf = 0; leaf < sources.size(); ++leaf) {
    if (padding.of(leaf).empty()) continue;
    use.elements += static_cast<std::size_t>(sources[leaf].numel());
    use.padding += static_cast<std::size_t>(statics[leaf].numel() - sources[leaf].numel());
  }
  return use;
}

}  // namespace

struct StaticInputs::Impl {
  /// All that is there once the first batch has come.
  struct Fixed {
    Fixed(BatchPlan first, c10::Device device, const StaticInputsOptions& options)
        : plan(std::move(first)),
          transfer(device, {.pin = options.pin, .double_buffer = options.double_buffer}, plan.layouts(),
                   plan.padding()) {
      for (std::size_t bucket = 0; bucket < plan.lengths().size(); ++bucket) {
        microbatches.push_back(plan.rebuild(transfer.statics(bucket)));
        uses.push_back({.length = plan.lengths()[bucket]});
      }
      static std::atomic<std::int64_t> next_key = 1;
      first_key = next_key.fetch_add(static_cast<std::int64_t>(uses.size()));
    }

    BatchPlan plan;
    BatchTransfer transfer;
    std::vector<std::vector<c10::IValue>> microbatches;  // of each bucket
    std::vector<BucketUse> uses;
    std::int64_t first_key;  // of the first bucket; the others follow
  };
  struct Prefetched {
    std::size_t bucket = 0;
    BucketUse use = {};
  };

  void prefetch(const std::vector<c10::IValue>& batch);
  void advance();
  void for_each_bucket(const std::function<void(std::int64_t length)>& visit);
  [[nodiscard]] Fixed& loaded() const;

  c10::Device device;
  StaticInputsOptions options;
  graph::ProcessMark process = {};
  std::unique_ptr<Fixed> fixed = {};
  std::optional<Prefetched> prefetched = {};
  std::optional<std::size_t> current = {};
};

void StaticInputs::Impl::prefetch(const std::vector<c10::IValue>& batch) {
  refuse_in_capture("prefetch");
  if (prefetched) {
    throw UsageError({.what = "prefetch() was called twice: a prefetched batch waits already",
                      .fix = "call advance() in between, which makes it the current one"});
  }
  std::optional<BatchPlan> first;
  if (!fixed) first.emplace(batch, options);
  const BatchPlan& plan = first ? *first : fixed->plan;
  std::vector<at::Tensor> sources = plan.flatten(batch);
  const std::size_t bucket = plan.bucket_for(sources);
  if (first) fixed = std::make_unique<Fixed>(std::move(*first), device, options);
  const BucketUse use = use_of(fixed->plan.padding(), sources, fixed->transfer.statics(bucket));
  fixed->transfer.send(std::move(sources), bucket);
  prefetched = {.bucket = bucket, .use = use};
}

void StaticInputs::Impl::advance() {
  refuse_in_capture("advance");
  if (!prefetched) {
    throw UsageError({.what = "advance() was called, but no batch was prefetched",
                      .fix = "call prefetch() first; load() does both"});
  }
  fixed->transfer.receive();
  BucketUse& use = fixed->uses[prefetched->bucket];
  use.batches += prefetched->use.batches;
  use.elements += prefetched->use.elements;
  use.padding += prefetched->use.padding;
  current = prefetched->bucket;
  prefetched.reset();
}

StaticInputs::Impl::Fixed& StaticInputs::Impl::loaded() const {
  if (!current) {
    throw UsageError({.what = "StaticInputs hold no batch yet", .fix = "load() one, or prefetch() and advance()"});
  }
  return *fixed;
}

void StaticInputs::Impl::for_each_bucket(const std::function<void(std::int64_t length)>& visit) {
  refuse_in_capture("for_each_bucket");
  Fixed& all = loaded();
  const std::size_t before = *current;
  std::vector<at::Tensor> values;
  {
    const trace::QuietScope quiet;
    for (const at::Tensor& tensor : all.transfer.statics(before)) values.push_back(tensor.clone());
  }
  const auto put_into = [&](std::size_t bucket) {
    all.transfer.place(values, bucket);
    current = bucket;
  };
  try {
    for (std::size_t bucket = all.plan.lengths().size(); bucket-- > 0;) {
      put_into(bucket);
      visit(all.plan.lengths()[bucket]);
    }
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    try {
      put_into(before);
    } catch (const std::exception&) {
      current = before;  // the device is of no use any more; what broke it says why
    }
    std::rethrow_exception(error);
  }
  put_into(before);
}

StaticInputs::StaticInputs(c10::Device device, StaticInputsOptions options)
    : impl_(std::make_unique<Impl>(Impl{.device = graph::usable_device(device), .options = std::move(options)})) {
  impl_->options.buckets.check();
}

StaticInputs::StaticInputs(StaticInputs&&) noexcept = default;
StaticInputs& StaticInputs::operator=(StaticInputs&&) noexcept = default;
// Memory that copies or other streams have used needs events when it is freed, which CUDA refuses when the process ends.
StaticInputs::~StaticInputs() {
  if (Impl* const impl = impl_.release()) graph::end_made_with(impl->process, impl);
}

void StaticInputs::prefetch(const std::vector<c10::IValue>& batch) { impl_->prefetch(batch); }

void StaticInputs::advance() { impl_->advance(); }

void StaticInputs::load(const std::vector<c10::IValue>& batch) {
  impl_->prefetch(batch);
  impl_->advance();
}

std::int64_t StaticInputs::key() const {
  return impl_->loaded().first_key + static_cast<std::int64_t>(*impl_->current);
}

const std::vector<c10::IValue>& StaticInputs::microbatches() const {
  return impl_->loaded().microbatches[*impl_->current];
}

const std::vector<at::Tensor>& StaticInputs::tensors() const {
  return impl_->loaded().transfer.statics(*impl_->current);
}

std::int64_t StaticInputs::bucket() const noexcept {
  return impl_->current ? impl_->fixed->uses[*impl_->current].length : 0;
}

void StaticInputs::for_each_bucket(const std::function<void(std::int64_t length)>& visit) {
  impl_->for_each_bucket(visit);
}

c10::Device StaticInputs::device() const noexcept { return impl_->device; }

std::size_t StaticInputs::bytes() const noexcept {
  return impl_->fixed ? impl_->fixed->transfer.static_bytes() + impl_->fixed->transfer.spare_bytes() : 0;
}

std::vector<BucketUse> StaticInputs::bucket_uses() const {
  return impl_->fixed ? impl_->fixed->uses : std::vector<BucketUse>();
}

Report StaticInputs::report() const {
  Report report("Static inputs");
  const Impl::Fixed* fixed = impl_->fixed.get();
  report.fact("device", "device", impl_->device.str())
      .fact("microbatches", "microbatches", fixed ? fixed->plan.microbatches() : 0)
      .fact("tensors", "tensors", fixed ? fixed->plan.tensors() : 0)
      .fact("static_bytes", "static tensors", fixed ? fixed->transfer.static_bytes() : 0, "bytes")
      .fact("spare_bytes", "spare buffers", fixed ? fixed->transfer.spare_bytes() : 0, "bytes")
      .fact("staging_bytes", "host buffers", fixed ? fixed->transfer.staging_bytes() : 0, "bytes");
  ReportTable table("buckets", impl_->options.buckets.sizes.empty() ? "Batches" : "Buckets",
                    {{"length"},
                     {"batches"},
                     {"elements"},
                     {"padding"},
                     {.key = "waste_percent", .label = "waste", .unit = "%", .decimals = 1}});
  for (const BucketUse& use : bucket_uses()) {
    table.row({use.length, use.batches, use.elements, use.padding, use.waste_percent()});
  }
  report.table(std::move(table));
  return report;
}

}  // namespace pianola
