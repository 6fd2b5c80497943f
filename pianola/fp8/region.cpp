#include <pianola/fp8/region.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace pianola::fp8 {
namespace {

thread_local Autocast* innermost = nullptr;

// By device; always the same ones, since graphs hold their addresses.
class Flags {
 public:
  static Flags& instance() {
    static Flags& all = *new Flags;  // never destroyed: a static graph may end after it
    return all;
  }

  at::Tensor of(c10::Device device) {
    const std::lock_guard lock(mutex_);
    at::Tensor& flag = flags_[device.str()];
    if (!flag.defined()) flag = at::ones(at::IntArrayRef(), at::TensorOptions(device).dtype(at::kBool));
    return flag;
  }

  void set(bool is_first) {
    const at::NoGradGuard no_grad;
    const std::lock_guard lock(mutex_);
    for (auto& [device, flag] : flags_) flag.fill_(is_first);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, at::Tensor> flags_;
};

}  // namespace

Autocast::Autocast(RegionOptions options) : options_(std::move(options)), outer_(innermost) {
  if (options_.recipe) options_.recipe->check();
  if (options_.is_first_microbatch) Flags::instance().set(*options_.is_first_microbatch);
  innermost = this;
}

Autocast::~Autocast() {
  try {
    end();
  } catch (const std::exception& error) {
    TORCH_WARN("pianola: scales could not be computed at the end of a region: ", error.what());
  }
}

void Autocast::end() {
  if (std::exchange(has_ended_, true)) return;
  innermost = outer_;
  if (outer_ != nullptr) return;
  const at::NoGradGuard no_grad;
  for (const auto& scales : std::exchange(ran_, {})) {
    if (options_.reduce) options_.reduce(scales->noted());
    scales->update();
  }
}

Autocast* Autocast::current() noexcept { return innermost; }

void Autocast::note(const std::shared_ptr<const ScaleTable>& scales) {
  if (outer_ != nullptr) return outer_->note(scales);
  if (std::find(ran_.begin(), ran_.end(), scales) == ran_.end()) ran_.push_back(scales);
}

at::Tensor first_microbatch_flag(c10::Device device) { return Flags::instance().of(device); }

}  // namespace pianola::fp8
