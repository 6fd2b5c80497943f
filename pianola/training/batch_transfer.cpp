#include <pianola/training/batch_transfer.hpp>

#include <pianola/graph/copy_into.hpp>
#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/tensors_of.hpp>

#if PIANOLA_WITH_CUDA
#include <pianola/cuda/capture_mode.hpp>
#endif

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace pianola::training {
namespace {

// Whether a copy from one to the other moves bytes in their order.
bool lies_alike(const at::Tensor& source, const at::Tensor& target) {
  return source.sizes() == target.sizes() && source.strides() == target.strides() &&
         target.is_non_overlapping_and_dense() && !source.is_conj() && !source.is_neg();
}

}  // namespace

BatchTransfer::BatchTransfer(c10::Device device, TransferOptions options, std::span<const BatchLayout> layouts,
                             const PaddingPlan& padding)
    : device_(device),
      options_(options),
      layouts_(layouts),
      padding_(padding),
      static_(layouts, c10::TensorOptions(device)),
      used_on_(current_stream()),
      taken_(device.type()),
      issued_(device.type()) {
  const std::size_t slots = device.is_cpu() ? 1 : 2;
  for (std::size_t i = 0; i < slots; ++i) slots_.emplace_back(device);
  if (device.is_cpu() || !options.double_buffer) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  side_ = guard.getStreamFromGlobalPool(device);
  spare_.emplace(layouts, c10::TensorOptions(device));
  guard.recordDataPtrOnStream(spare_->block().storage().data_ptr(), *side_);
  taken_.record(used_on_);  // the zeros, and whatever had the memory before
}

BatchTransfer::~BatchTransfer() {
#if PIANOLA_WITH_CUDA
  // Python's garbage collector may come by in the middle of a capture, where CUDA forbids some calls.
  std::optional<RelaxedCaptureMode> relaxed;
  if (const Driver* driver = device_.is_cuda() ? Driver::try_get() : nullptr) relaxed.emplace(*driver);
#endif
  for (const Slot& slot : slots_) {
    try {
      slot.sent.synchronize();
    } catch (...) {  // NOLINT(bugprone-empty-catch): the device is gone, and nothing reads the host's memory
    }
  }
}

c10::Stream BatchTransfer::current_stream() const {
  return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
}

std::size_t BatchTransfer::staging_bytes() const {
  std::size_t bytes = 0;
  for (const Slot& slot : slots_) bytes += slot.staging ? slot.staging->block().nbytes() : 0;
  return bytes;
}

Route BatchTransfer::route_of(const at::Tensor& source, std::size_t leaf, std::size_t bucket) const {
  const at::Tensor& target = static_.tensors(bucket)[leaf];
  if (source.sizes() == target.sizes() && graph::is_same_memory(target, source)) return Route::none;
  if (!source.is_cpu()) return Route::local;
  const bool may_travel = !device_.is_cpu() && !options_.reads_at_once && lies_alike(source, target);
  return may_travel && (!options_.pin || source.is_pinned()) ? Route::direct : Route::staged;
}

void BatchTransfer::find_routes() {
  for (std::size_t leaf = 0; leaf < sent_.sources.size(); ++leaf) {
    sent_.routes.push_back(route_of(sent_.sources[leaf], leaf, sent_.bucket));
  }
  const bool any_local = std::find(sent_.routes.begin(), sent_.routes.end(), Route::local) != sent_.routes.end();
  if (!any_local || device_.is_cpu()) return;
  sent_.stream = current_stream();
  issued_.record(*sent_.stream);
}

void BatchTransfer::send(std::vector<at::Tensor> sources, std::size_t bucket) {
  const trace::QuietScope quiet;
  sent_ = {.bucket = bucket, .sources = std::move(sources)};
  find_routes();
  turn_ = (turn_ + 1) % slots_.size();
  Slot& slot = slots_[turn_];
  slot.sent.synchronize();
  slot.sources.clear();
  stage(slot);
  if (!spare_) return;
  const c10::StreamGuard on_side(*side_);
  taken_.block(*side_);
  copy_from_host(*spare_, slot);
  slot.sent.record(*side_);
}

void BatchTransfer::stage(Slot& slot) {
  for (std::size_t leaf = 0; leaf < sent_.sources.size(); ++leaf) {
    if (sent_.routes[leaf] != Route::staged) continue;
    if (!slot.staging) {
      slot.staging.emplace(layouts_, c10::TensorOptions(c10::kCPU).pinned_memory(options_.pin && !device_.is_cpu()));
    }
    copy_padded(slot.staging->tensors(sent_.bucket)[leaf], sent_.sources[leaf], padding_.of(leaf));
    sent_.sources[leaf].reset();
  }
}

// Calls visit(first, last) for the tensors that follow each other by one of the routes.
template <typename Visit>
void BatchTransfer::for_each_run(std::initializer_list<Route> routes, const Visit& visit) const {
  const auto goes = [&](std::size_t leaf) {
    return std::find(routes.begin(), routes.end(), sent_.routes[leaf]) != routes.end();
  };
  for (std::size_t first = 0; first < sent_.routes.size(); ++first) {
    if (!goes(first)) continue;
    std::size_t last = first;
    while (last + 1 < sent_.routes.size() && goes(last + 1)) ++last;
    visit(first, last);
    first = last;
  }
}

void BatchTransfer::copy_from_host(const BatchMemory& to, Slot& slot) {
  const BatchLayout& layout = layouts_[sent_.bucket];
  for_each_run({Route::staged}, [&](std::size_t first, std::size_t last) {
    to.bytes_of(layout, first, last).copy_(slot.staging->bytes_of(layout, first, last), /*non_blocking=*/true);
  });
  for (std::size_t leaf = 0; leaf < sent_.routes.size(); ++leaf) {
    if (sent_.routes[leaf] != Route::direct) continue;
    to.tensors(sent_.bucket)[leaf].copy_(sent_.sources[leaf], /*non_blocking=*/true);
    slot.sources.push_back(std::move(sent_.sources[leaf]));
  }
}

void BatchTransfer::copy_from_spare() {
  const BatchLayout& layout = layouts_[sent_.bucket];
  for_each_run({Route::staged, Route::direct}, [&](std::size_t first, std::size_t last) {
    static_.bytes_of(layout, first, last).copy_(spare_->bytes_of(layout, first, last), /*non_blocking=*/true);
  });
}

// Sources that look at the static memory of other tensors are read before any of that is written.
void BatchTransfer::keep_apart() {
  for (std::size_t leaf = 0; leaf < sent_.sources.size(); ++leaf) {
    if (sent_.routes[leaf] != Route::local) continue;
    at::Tensor& source = sent_.sources[leaf];
    if (trace::storage_of(source) == trace::storage_of(static_.block())) source = source.clone();
  }
}

void BatchTransfer::copy_from_devices(c10::Stream current) {
  for (std::size_t leaf = 0; leaf < sent_.sources.size(); ++leaf) {
    if (sent_.routes[leaf] != Route::local) continue;
    const at::Tensor& source = sent_.sources[leaf];
    copy_padded(static_.tensors(sent_.bucket)[leaf], source, padding_.of(leaf));
    if (sent_.stream && *sent_.stream != current && source.device() == device_) {
      c10::impl::VirtualGuardImpl(device_.type()).recordDataPtrOnStream(source.storage().data_ptr(), current);
    }
  }
}

// So that the allocator lends their memory to nobody else before the work of this stream is done, should they go.
void BatchTransfer::note_use_on(c10::Stream current) {
  if (used_on_ == current) return;
  used_on_ = current;
  const c10::impl::VirtualGuardImpl guard(device_.type());
  guard.recordDataPtrOnStream(static_.block().storage().data_ptr(), current);
  if (spare_) guard.recordDataPtrOnStream(spare_->block().storage().data_ptr(), current);
}

void BatchTransfer::receive() {
  const trace::QuietScope quiet;
  const c10::Stream current = current_stream();
  note_use_on(current);
  Slot& slot = slots_[turn_];
  if (sent_.stream && *sent_.stream != current) issued_.block(current);
  keep_apart();
  if (spare_) {
    slot.sent.block(current);
    copy_from_spare();
    taken_.record(current);
  } else {
    copy_from_host(static_, slot);
    if (!device_.is_cpu()) slot.sent.record(current);
  }
  copy_from_devices(current);
  for_each_run({Route::staged, Route::direct}, [&](std::size_t first, std::size_t last) {
    for (std::size_t leaf = first; leaf <= last; ++leaf) {  // the bytes were written behind autograd's back
      static_.tensors(sent_.bucket)[leaf].unsafeGetTensorImpl()->bump_version();
    }
  });
  sent_ = {};
}

void BatchTransfer::place(std::span<const at::Tensor> values, std::size_t bucket) {
  const trace::QuietScope quiet;
  for (std::size_t leaf = 0; leaf < values.size(); ++leaf) {
    copy_padded(static_.tensors(bucket)[leaf], values[leaf], padding_.of(leaf));
  }
}

}  // namespace pianola::training
