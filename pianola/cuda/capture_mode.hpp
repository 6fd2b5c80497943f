#pragma once
#include <pianola/cuda/driver.hpp>

namespace pianola {

/// Lets this thread make calls that CUDA forbids while a capture is open on it (cuThreadExchangeStreamCaptureMode),
/// for work that has nothing to do with that capture, such as destroying another graph.
class RelaxedCaptureMode {
 public:
  explicit RelaxedCaptureMode(const Driver& driver) noexcept;
  RelaxedCaptureMode(const RelaxedCaptureMode&) = delete;
  RelaxedCaptureMode& operator=(const RelaxedCaptureMode&) = delete;
  ~RelaxedCaptureMode();

 private:
  const Driver& driver_;
  CUstreamCaptureMode previous_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool exchanged_;
};

}  // namespace pianola
