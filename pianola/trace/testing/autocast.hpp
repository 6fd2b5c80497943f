#pragma once
#include <ATen/autocast_mode.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace pianola::testing {

/// While it lives, autocast to bfloat16, as torch.autocast does it.
class AutocastRegion {
 public:
  /// @param cache  Whether weights that were cast are kept until the outermost region ends.
  explicit AutocastRegion(c10::DeviceType device, bool cache = true)
      : device_(device), had_cache_(at::autocast::is_autocast_cache_enabled()) {
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::set_autocast_dtype(device_, at::kBFloat16);
    at::autocast::set_autocast_cache_enabled(cache);
    at::autocast::increment_nesting();
  }
  AutocastRegion(const AutocastRegion&) = delete;
  AutocastRegion& operator=(const AutocastRegion&) = delete;
  ~AutocastRegion() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, false);
    at::autocast::set_autocast_cache_enabled(had_cache_);
  }

 private:
  c10::DeviceType device_;
  bool had_cache_;
};

}  // namespace pianola::testing
