#include <pianola/cuda/compiler.hpp>
#include <pianola/fp8/cuda/quantize_code.hpp>
#include <pianola/fp8/cuda/quantize_kernels.hpp>
#include <pianola/fp8/quantize_operation.hpp>

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <limits>

namespace pianola::fp8 {
namespace {

constexpr std::int64_t kTile = kQuantizeTile;
constexpr std::int64_t kMostParts = 512;  // of one amax; each block of the next kernel reads them all

// The parameters of the kernels, as quantize_code.hpp has them.
struct Matrix {
  const void* values;
  long long rows, columns;
  bool is_aligned;
};
struct Written {
  void* rows = nullptr;
  float* rows_inverse = nullptr;
  void* columns = nullptr;
  float* columns_inverse = nullptr;
};
static_assert(sizeof(Matrix) == 32 && sizeof(Written) == 32);

Matrix matrix_of(const at::Tensor& values) {
  const auto address = reinterpret_cast<std::uintptr_t>(values.const_data_ptr());
  return {.values = values.const_data_ptr(),
          .rows = values.size(0),
          .columns = values.size(1),
          .is_aligned = values.size(1) % 8 == 0 && address % 16 == 0};
}

std::int64_t tiles_of(const at::Tensor& values) {
  return ((values.size(0) + kTile - 1) / kTile) * ((values.size(1) + kTile - 1) / kTile);
}

template <class... Arguments>
void launch(const KernelKind& kind, std::int64_t blocks, Arguments... arguments) {
  std::array<void*, sizeof...(Arguments)> pointers = {static_cast<void*>(&arguments)...};
  launch_kernel(quantize_kernel(kind), static_cast<unsigned>(blocks), kQuantizeThreads,
                c10::cuda::getCurrentCUDAStream(), pointers.data());
}

float* floats_of(const MaybeTensor& tensor) { return tensor ? tensor->mutable_data_ptr<float>() : nullptr; }

// It reads neither the type nor how scales are rounded.
KernelKind amaxes_kind(const KernelKind& kind) {
  return {.element = kind.element, .granularity = kind.granularity, .notes_amaxes = true};
}

// What the scales of `kind` are made of before the tensor is cast: nothing, parts of one amax, or those of rows and columns.
at::Tensor amaxes_of(KernelKind kind, const at::Tensor& values, const QuantizeRequest& request, const bool* flag) {
  kind = amaxes_kind(kind);
  const at::TensorOptions floats = values.options().dtype(at::kFloat);
  if (kind.granularity == Granularity::whole) {
    const std::int64_t parts = std::min(tiles_of(values), kMostParts);
    const at::Tensor made = at::empty({parts}, floats);
    launch(kind, parts, matrix_of(values), made.mutable_data_ptr<float>(), static_cast<float*>(nullptr), flag);
    return made;
  }
  if (kind.granularity != Granularity::row) return {};
  const std::int64_t rows = request.rows ? values.size(0) : 0, columns = request.columns ? values.size(1) : 0;
  const at::Tensor made = at::zeros({rows + columns}, floats);
  float* const first = made.mutable_data_ptr<float>();
  launch(kind, tiles_of(values), matrix_of(values), rows == 0 ? nullptr : first, columns == 0 ? nullptr : first + rows,
         flag);
  return made;
}

void note_largest(KernelKind kind, const at::Tensor& values, const at::Tensor& noted, const bool* flag) {
  kind.granularity = Granularity::given;
  kind = amaxes_kind(kind);
  launch(kind, std::min(tiles_of(values), kMostParts), matrix_of(values), noted.mutable_data_ptr<float>(),
         static_cast<float*>(nullptr), flag);
}

bool has_kernel(const at::Tensor& values) {
  const c10::ScalarType type = values.scalar_type();
  return (type == c10::kBFloat16 || type == c10::kHalf || type == c10::kFloat) &&
         tiles_of(values) <= std::numeric_limits<int>::max() &&
         values.size(1) <= std::numeric_limits<unsigned>::max() && has_quantize_kernels();
}

void quantize_on_cuda(const at::Tensor& given, c10::ScalarType type, std::int64_t granularity, bool powers_of_two,
                      const MaybeTensor& scale, const MaybeTensor& amax, const MaybeTensor& is_wanted,
                      const MaybeTensor& rows, const MaybeTensor& rows_inverse, const MaybeTensor& columns,
                      const MaybeTensor& columns_inverse) {
  const QuantizeRequest request = quantize_request(type, granularity, powers_of_two, scale, amax, is_wanted, rows,
                                                   rows_inverse, columns, columns_inverse);
  const c10::cuda::CUDAGuard device(given.device());
  if (!has_kernel(given)) return quantize_by_operators(given, request);
  const at::Tensor values = given.contiguous();
  const KernelKind kind{.element = values.scalar_type(),
                        .type = type,
                        .granularity = request.granularity,
                        .powers_of_two = powers_of_two};
  const bool* const flag = is_wanted ? is_wanted->const_data_ptr<bool>() : nullptr;
  const bool is_noted_with = request.granularity == Granularity::given;
  if (rows || columns) {
    const at::Tensor amaxes = amaxes_of(kind, values, request, flag);
    const Written out{.rows = rows ? rows->mutable_data_ptr() : nullptr,
                      .rows_inverse = floats_of(rows_inverse),
                      .columns = columns ? columns->mutable_data_ptr() : nullptr,
                      .columns_inverse = floats_of(columns_inverse)};
    float* const noted = is_noted_with      ? floats_of(amax)
                         : amaxes.defined() ? amaxes.mutable_data_ptr<float>()
                                            : nullptr;
    const int parts = amaxes.defined() ? static_cast<int>(std::min(amaxes.numel(), kMostParts)) : 0;
    launch(kind, tiles_of(values), matrix_of(values), out, scale ? scale->const_data_ptr<float>() : nullptr, noted,
           parts, flag);
    if (is_noted_with) return;
  }
  if (amax) note_largest(kind, values, *amax, flag);
}

}  // namespace

TORCH_LIBRARY_IMPL(pianola, CUDA, library) { library.impl("fp8_quantize_", &quantize_on_cuda); }

}  // namespace pianola::fp8
