#include <pianola/trace/storage_bytes.hpp>

#include <pianola/trace/quiet_scope.hpp>

#include <ATen/ops/empty.h>

#include <cstdint>

namespace pianola::trace {

at::Tensor bytes_of(const c10::Storage& storage) {
  const QuietScope quiet;
  at::Tensor bytes = at::empty({0}, at::TensorOptions().dtype(at::kByte).device(storage.device()));
  bytes.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
  bytes.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<std::int64_t>(storage.nbytes())});
  return bytes;
}

}  // namespace pianola::trace
