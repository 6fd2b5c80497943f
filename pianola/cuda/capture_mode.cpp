#include <pianola/cuda/capture_mode.hpp>

namespace pianola {

// A failed exchange is no reason to stop: the call it was meant for will say what is wrong.
RelaxedCaptureMode::RelaxedCaptureMode(const Driver& driver) noexcept
    : driver_(driver), exchanged_(driver.thread_exchange_stream_capture_mode(&previous_) == CUDA_SUCCESS) {}

RelaxedCaptureMode::~RelaxedCaptureMode() {
  if (exchanged_) driver_.thread_exchange_stream_capture_mode(&previous_);
}

}  // namespace pianola
