#include <pianola/callable/stream_order.hpp>

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace pianola::callable {

void StreamOrder::enter(c10::Device device) {
  if (device.is_cpu()) return;
  const c10::Stream now = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  if (last_ == now) [[likely]]
    return;
  if (last_) {
    c10::Event reached(device.type());
    reached.record(*last_);
    reached.block(now);
  }
  last_ = now;
}

}  // namespace pianola::callable
