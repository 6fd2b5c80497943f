#pragma once
#include <ATen/Context.h>

namespace pianola::bench::cuda {

/// How matrix products are computed while it lives: in TF32, as training has them, or in IEEE single precision.
class Products {
 public:
  explicit Products(bool tf32) { at::globalContext().setAllowTF32CuBLAS(tf32); }
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;
  ~Products() { at::globalContext().setAllowTF32CuBLAS(before_); }

 private:
  bool before_ = at::globalContext().allowTF32CuBLAS();
};

}  // namespace pianola::bench::cuda
