#pragma once
#include <pianola/verify/options.hpp>
#include <pianola/verify/report.hpp>

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace pianola::verification {

/// The same tensor of both sides.
struct Pair {
  std::string name = {};
  std::string role = {};  ///< "output", "input", "gradient", "state", "generator".
  at::Tensor eager = {};  ///< Undefined where the side has none.
  at::Tensor graphed = {};
};

/// What the two sides of the pairs are called.
struct SideNames {
  const char* one = "eager";
  const char* other = "graph";
};

using Tolerances = std::map<c10::ScalarType, Tolerance>;

/// One pair that is not equal, beyond the tolerance.
struct Mismatch {
  std::size_t pair = 0;  ///< Index among those that were compared.
  TensorDifference difference = {};
  bool graph_has_nan = false;  ///< NaN on the graph's side where eager has a number.
};

/// What comparing came to.
struct Comparison {
  std::vector<Mismatch> mismatches = {};  ///< In the order of the pairs.
  bool same_bits = true;                  ///< Of all pairs, whatever the tolerance says.
};

/// Compares bits first, all pairs with one wait for the device, and looks closer only at pairs that differ.
///
/// An undefined gradient of eager equals one of zeros of the graph: a graph writes into memory that is there from the
/// capture on, so that zeros stand for "none".
Comparison compare(const std::vector<Pair>& pairs, const Tolerances& tolerances, int step, const SideNames& names = {});

/// "Float [16, 64]".
std::string shape_text(const at::Tensor& tensor);

}  // namespace pianola::verification
