#pragma once
#include <pianola/trace/plain_check.hpp>

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

namespace pianola::callable {

/// Settings outside a callable that decide which kernels it runs, and on what. Cheap to read and to compare.
struct Ambient {
  bool autocast = false;
  c10::ScalarType autocast_dtype = c10::ScalarType::Undefined;  ///< Undefined where autocast is off.
  bool deterministic = false;
  bool tf32_matmul = false;       ///< Matrix products of float32 may use a shorter format (TF32).
  bool tf32_convolution = false;  ///< The same for convolutions.
  bool cudnn_benchmark = false;
  std::uint64_t region = 0;  ///< In which modules compute otherwise: trace::NumericRegion::current_number().
  c10::ScalarType default_dtype = c10::ScalarType::Float;  ///< Of tensors that are made without one.
  trace::Oddity modes = trace::Oddity::none;               ///< A graph obeys none of them.
  trace::FunctionModes function_modes = {};                ///< The default device is one.

  /// Of this thread, now.
  static Ambient current(c10::DeviceType device);
  friend bool operator==(const Ambient&, const Ambient&) = default;
  /// A mode whose code a graph would not run; Oddity::none where there is none.
  [[nodiscard]] trace::Oddity oddity() const noexcept;
  /// "autocast: captured bfloat16, now off", one entry for each setting that differs.
  [[nodiscard]] std::vector<std::string> differences(const Ambient& now) const;
};

/// Autocast is off on this thread while it lives, as it is for a backward() outside of an autocast region.
class AutocastOff {
 public:
  explicit AutocastOff(c10::DeviceType device);
  AutocastOff(const AutocastOff&) = delete;
  AutocastOff& operator=(const AutocastOff&) = delete;
  ~AutocastOff();

 private:
  c10::DeviceType device_;
  bool was_on_;
};

}  // namespace pianola::callable
