#include <pianola/graph/stream_order.hpp>

#include <pianola/core/error.hpp>

#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstddef>
#include <cstdint>
#include <exception>

#if PIANOLA_WITH_CUDA
#include <pianola/cuda/capture_info.hpp>

#include <c10/cuda/CUDAStream.h>
#endif

namespace pianola::graph {
namespace {

// An event that is recorded there would become part of that capture.
void check_can_be_waited_for([[maybe_unused]] const c10::Stream& stream) {
#if PIANOLA_WITH_CUDA
  if (capture_status(c10::cuda::CUDAStream(stream).stream()) == CaptureStatus::none) return;
  throw UsageError({.what = "this replay must wait for the stream of the last one, because they share memory, but that "
                            "stream is being captured; nothing was launched",
                    .fix = "replay when that capture has ended, or capture on a stream of its own"});
#endif
}

}  // namespace

bool is_named_by_its_handle([[maybe_unused]] const c10::Stream& stream) {
#if PIANOLA_WITH_CUDA
  if (!stream.device().is_cuda()) return false;
  const c10::cuda::CUDAStream of_cuda(stream);
  return stream.id() == static_cast<c10::StreamId>(reinterpret_cast<std::intptr_t>(of_cuda.stream()));
#else
  return false;
#endif
}

void StreamOrder::enter(c10::Device device) {
  if (!device.is_cpu()) enter(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

// A stream that may end is told by its handle, which the next one that is made may have: it waits as another one.
void StreamOrder::enter(const c10::Stream& now) {
  if (last_ != now || (left_ && may_end(now))) [[unlikely]] {
    if (last_) {
      if (!left_) {
        check_can_be_waited_for(*last_);
        leave();
      }
      reached_->block(now);
    }
    last_ = now;
  }
  left_ = false;
}

void StreamOrder::leave() {
  if (!reached_) reached_.emplace(last_->device_type());
  reached_->record(*last_);
  left_ = true;
}

// An error of the device is told by its next call. What can be waited for then is the mark before.
void StreamOrder::abandon() noexcept {
  try {
    leave_if_it_may_end();
  } catch (const std::exception&) {
    left_ = true;
  }
}

void StreamOrders::enter(c10::Device device) {
  if (device.is_cpu()) return;
  const auto index = static_cast<std::size_t>(device.index());
  if (index >= of_devices_.size()) of_devices_.resize(index + 1);  // in its first call
  of_devices_[index].enter(device);
}

void StreamOrders::leave_if_they_may_end() {
  for (StreamOrder& order : of_devices_) order.leave_if_it_may_end();
}

}  // namespace pianola::graph
