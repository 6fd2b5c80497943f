#pragma once
#include <pianola/core/export.hpp>
#include <pianola/fp8/recipe.hpp>
#include <pianola/fp8/scales.hpp>
#include <pianola/trace/numeric_region.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace pianola::fp8 {

/// How layers inside of a region compute. Names and meanings are those of Transformer Engine's autocast.
struct RegionOptions {
  bool enabled = true;                ///< Off: as outside of all regions.
  std::optional<Recipe> recipe = {};  ///< Absent: the one that the layers were made with.
  bool calibrating = false;           ///< With enabled = false: amaxes are noted, products are not in 8 bits.
  std::optional<bool> is_first_microbatch =
      {};  ///< Given: weights are quantised in the first alone, and kept for the others.
  /// Makes each amax the largest of all ranks, in place: one call for all, before scales are computed.
  std::function<void(const at::Tensor& amaxes)> reduce = {};
};

/// A region of this thread in which layers compute with 8 bits. At the end of the outermost one the scales of the layers that ran in
/// it are computed anew; see Note [Delayed scales]. An inner region replaces what the outer one says, until it ends.
///
///     { const pianola::fp8::Autocast region;  loss = loss_of(model->forward(x)); }
///     loss.backward();
///
/// Threads:  Each has its own regions. The backward pass needs none.
class PIANOLA_API Autocast final : private trace::NumericRegion {
 public:
  /// @throws UsageError  As Recipe::check().
  explicit Autocast(RegionOptions options = {});
  ~Autocast() override;

  /// Computes scales, where this is the outermost region; the destructor then does not. For what may throw.
  void end();

  /// The innermost region of this thread; nullptr: none.
  [[nodiscard]] static Autocast* current() noexcept;
  [[nodiscard]] const RegionOptions& options() const noexcept { return options_; }
  /// A layer ran. @param scales  Where it noted its amaxes; nullptr: it did not.
  void ran(const std::shared_ptr<const ScaleTable>& scales) { NumericRegion::ran(scales); }

 private:
  void hear(const std::shared_ptr<const void>& what) override;

  RegionOptions options_;
  std::vector<std::shared_ptr<const ScaleTable>> ran_;  // of the outermost one
  bool has_ended_ = false;
};

/// bool [] on the device: RegionOptions::is_first_microbatch of the last region that was given one, which graphs read. There is one for
/// each device, always the same, and regions set it where they begin; make it before, or the first region sets none. Regions that say it
/// are one thread's at a time.
[[nodiscard]] PIANOLA_API at::Tensor first_microbatch_flag(c10::Device device);

}  // namespace pianola::fp8
