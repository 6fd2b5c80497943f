#pragma once
#include <pianola/verify/compare.hpp>
#include <pianola/verify/options.hpp>
#include <pianola/verify/report.hpp>

#include <ATen/core/Tensor.h>

namespace pianola::verification {

/// How two tensors of one shape and dtype differ, element by element.
struct CloserLook {
  std::size_t differing = 0;  ///< Elements beyond the tolerance: 0 means that it explains all of them.
  double max_absolute = 0;    ///< Infinite where NaN or an infinity meets a number.
  double max_relative = 0;    ///< To the value of `one`; elements where that is 0 do not count.
  std::int64_t max_ulps = 0;
  std::string first = {};
  bool only_other_has_nan = false;  ///< NaN where the first has a number.
};

/// @param tolerance  All zero: what is not equal bit for bit differs.
CloserLook look_closer(const at::Tensor& one, const at::Tensor& other, const Tolerance& tolerance,
                       const SideNames& names);

}  // namespace pianola::verification
