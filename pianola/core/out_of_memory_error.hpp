#pragma once
#include <pianola/core/error.hpp>
#include <pianola/core/export.hpp>

namespace pianola {

/// The device ran out of memory while a capture recorded. Torch's own error (c10::OutOfMemoryError) is nested in it; in
/// Python it is a torch.OutOfMemoryError as well, so that code that answers that answers this.
class PIANOLA_API OutOfMemoryError : public CaptureError {
 public:
  using CaptureError::CaptureError;
  ~OutOfMemoryError() override;
};

}  // namespace pianola
