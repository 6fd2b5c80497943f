#include <pianola/fp8/region.hpp>

#include <pianola/graph/open_capture.hpp>
#include <pianola/trace/quiet_scope.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace pianola::fp8 {
namespace {

// What layers compute in a region, whatever else it says. Empty: as outside.
std::string how_it_computes(const RegionOptions& options) {
  if (!options.enabled) return options.calibrating ? "calibration of 8 bits" : "";
  std::string words = "8 bits, " + (options.recipe ? options.recipe->to_text() : "each layer's recipe");
  if (options.is_first_microbatch) words += ", weights kept";
  return words;
}

// By device; always the same ones, since graphs hold their addresses.
class Flags {
 public:
  static Flags& instance() {
    static Flags& all = *new Flags;  // never destroyed: a static graph may end after it
    return all;
  }

  at::Tensor of(c10::Device device) {
    const c10::InferenceMode no_inference(false);
    const std::lock_guard lock(mutex_);
    at::Tensor& flag = flags_[device.str()];
    if (!flag.defined()) flag = at::ones(at::IntArrayRef(), at::TensorOptions(device).dtype(at::kBool));
    return flag;
  }

  void set(bool is_first) {
    const at::NoGradGuard no_grad;
    const std::lock_guard lock(mutex_);
    for (auto& [device, flag] : flags_) {
      // A graph has nothing to do with the flags of other devices.
      std::optional<trace::QuietScope> quiet;
      if (graph::capture_is_open() && flag.device().type() != graph::capture_device()) quiet.emplace();
      flag.fill_(is_first);
    }
  }

 private:
  std::mutex mutex_;
  std::map<std::string, at::Tensor> flags_;
};

}  // namespace

Autocast::Autocast(RegionOptions options) : NumericRegion(how_it_computes(options)), options_(std::move(options)) {
  if (options_.recipe) options_.recipe->check();
  if (options_.is_first_microbatch) Flags::instance().set(*options_.is_first_microbatch);
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
  leave();
  if (options_.is_first_microbatch) {
    const Autocast* const outer = current();  // which goes on as it began
    if (outer != nullptr && outer->options_.is_first_microbatch)
      Flags::instance().set(*outer->options_.is_first_microbatch);
  }
  const at::NoGradGuard no_grad;
  for (const auto& scales : std::exchange(ran_, {})) {
    if (options_.reduce) options_.reduce(scales->noted());
    scales->update();
  }
}

Autocast* Autocast::current() noexcept { return static_cast<Autocast*>(NumericRegion::current()); }

void Autocast::hear(const std::shared_ptr<const void>& what) {
  const auto scales = std::static_pointer_cast<const ScaleTable>(what);
  if (std::find(ran_.begin(), ran_.end(), scales) == ran_.end()) ran_.push_back(scales);
}

at::Tensor first_microbatch_flag(c10::Device device) { return Flags::instance().of(device); }

}  // namespace pianola::fp8
