#include <pianola/fp8/quantize.hpp>

#include <pianola/core/error.hpp>
#include <pianola/fp8/quantize_operation.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isinf.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <utility>

namespace pianola::fp8 {
namespace {

constexpr std::int64_t kBlock = 128;
constexpr float kLargestFloat = std::numeric_limits<float>::max();

// [rows, columns] as [rows / a, a, columns / b, b]
at::Tensor in_blocks(const at::Tensor& matrix, std::int64_t rows, std::int64_t columns) {
  return matrix.view({matrix.size(0) / rows, rows, matrix.size(1) / columns, columns});
}

struct Block {
  std::int64_t rows, columns;
};

Block block_of(Granularity granularity, const at::Tensor& matrix) {
  switch (granularity) {
    case Granularity::row:
      return {.rows = 1, .columns = matrix.size(1)};
    case Granularity::block_1x128:
      return {.rows = 1, .columns = kBlock};
    case Granularity::block_128x128:
      return {.rows = kBlock, .columns = kBlock};
    case Granularity::given:
    case Granularity::whole:
      break;
  }
  return {.rows = matrix.size(0), .columns = matrix.size(1)};
}

bool has_one_scale(Granularity granularity) {
  return granularity == Granularity::given || granularity == Granularity::whole;
}

// Of float32; NaN is left out.
at::Tensor magnitudes(const at::Tensor& values) {
  return at::nan_to_num(at::abs(values), 0.0, std::numeric_limits<double>::infinity());
}

// What is infinite must not become a number: whoever looks for an overflow would not find it. NaN has one sign.
at::Tensor cast(const at::Tensor& values, const at::Tensor& scale, c10::ScalarType type) {
  const double largest = largest_of(type);
  const at::Tensor numbers = at::where(at::isinf(values), values, at::clamp(values * scale, -largest, largest));
  return at::where(at::isnan(values), at::scalar_tensor(std::numeric_limits<double>::quiet_NaN(), values.options()),
                   numbers)
      .to(type);
}

// float32 [rows, columns], with scales of blocks along its columns.
Factor quantize_blocks(const at::Tensor& values, const QuantizeOptions& options) {
  const Block block = block_of(options.granularity, values);
  const at::Tensor blocks = in_blocks(values, block.rows, block.columns);
  const at::Tensor amax = at::amax(magnitudes(blocks), {1, 3});
  const at::Tensor scale = scale_of(amax, options.type, options.powers_of_two);
  return {.data = cast(blocks, scale.unsqueeze(1).unsqueeze(3), options.type).view(values.sizes()),
          .inverse = at::reciprocal(scale),
          .granularity = options.granularity};
}

// Everything that is wanted, in new memory. `options.amax` is not looked at.
Quantized computed(const at::Tensor& values, const QuantizeOptions& options) {
  const at::Tensor plain = values.to(at::kFloat).contiguous();
  Quantized result;
  if (!has_one_scale(options.granularity)) {
    if (options.rows) result.rows = quantize_blocks(plain, options);
    if (options.columns) result.columns = quantize_blocks(plain.t().contiguous(), options);
    return result;
  }
  const at::Tensor scale = options.granularity == Granularity::given
                               ? options.scale
                               : scale_of(at::amax(magnitudes(plain)), options.type, options.powers_of_two);
  const at::Tensor data = cast(plain, scale, options.type), inverse = at::reciprocal(scale);
  if (options.rows) result.rows = {.data = data, .inverse = inverse, .granularity = options.granularity};
  if (options.columns)
    result.columns = {.data = data.t().contiguous(), .inverse = inverse, .granularity = options.granularity};
  return result;
}

// Bytes are copied as such: little is implemented for their types.
void put(const Factor& computed, const Factor& out, const MaybeTensor& is_wanted) {
  if (!out.data.defined()) return;
  const at::Tensor bytes = out.data.view(at::kByte), made = computed.data.view(at::kByte);
  const bool is_conditional = is_wanted && !is_wanted->is_cpu();
  bytes.copy_(is_conditional ? at::where(*is_wanted, made, bytes) : made);
  out.inverse.copy_(is_conditional ? at::where(*is_wanted, computed.inverse, out.inverse) : computed.inverse);
}

void note_amax(const at::Tensor& values, const at::Tensor& noted, const MaybeTensor& is_wanted) {
  const at::Tensor largest = at::maximum(noted, at::amax(magnitudes(values.to(at::kFloat))));
  noted.copy_(is_wanted && !is_wanted->is_cpu() ? at::where(*is_wanted, largest, noted) : largest);
}

// As the dispatcher gives it.
void quantize_kernel(const at::Tensor& values, c10::ScalarType type, std::int64_t granularity, bool powers_of_two,
                     const MaybeTensor& scale, const MaybeTensor& amax, const MaybeTensor& is_wanted,
                     const MaybeTensor& rows, const MaybeTensor& rows_inverse, const MaybeTensor& columns,
                     const MaybeTensor& columns_inverse) {
  quantize_by_operators(values, quantize_request(type, granularity, powers_of_two, scale, amax, is_wanted, rows,
                                                 rows_inverse, columns, columns_inverse));
}

MaybeTensor maybe(const at::Tensor& tensor) { return tensor.defined() ? MaybeTensor(tensor) : std::nullopt; }

void check(const at::Tensor& values, const QuantizeOptions& options) {
  if (values.dim() != 2 || !values.is_floating_point()) {
    throw UsageError({.what = fmt::format("what is quantised must be a matrix of a floating type, got {} [{}]",
                                          c10::toString(values.scalar_type()), fmt::join(values.sizes(), ", "))});
  }
  if (values.numel() == 0) {
    throw UsageError({.what = fmt::format("what is quantised has no elements: [{}]", fmt::join(values.sizes(), ", ")),
                      .fix = "leave such a batch out"});
  }
  const bool is_cut =
      options.granularity == Granularity::block_1x128 || options.granularity == Granularity::block_128x128;
  const bool is_square = options.granularity == Granularity::block_128x128;
  const bool fits = (values.size(1) % kBlock == 0 || !(options.rows || is_square)) &&
                    (values.size(0) % kBlock == 0 || !(options.columns || is_square));
  if (is_cut && !fits) {
    throw UsageError(
        {.what = fmt::format("blocks of 128 do not fit into a matrix of [{}]", fmt::join(values.sizes(), ", ")),
         .fix = "pad it to a multiple of 128, or use another scaling"});
  }
}

Factor empty_factor(std::int64_t rows, std::int64_t columns, const at::Tensor& values, const QuantizeOptions& options) {
  Factor made;
  made.granularity = options.granularity;
  made.data = at::empty({rows, columns}, values.options().dtype(options.type).requires_grad(false));
  const at::TensorOptions scales = made.data.options().dtype(at::kFloat);
  if (has_one_scale(options.granularity)) {
    made.inverse = at::empty(at::IntArrayRef(), scales);
  } else {
    const Block block = block_of(options.granularity, made.data);
    made.inverse = at::empty({rows / block.rows, columns / block.columns}, scales);
  }
  return made;
}

void call(const Quantized& out, const at::Tensor& values, const QuantizeOptions& options,
          const MaybeTensor& is_wanted) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("pianola::fp8_quantize_", "")
                             .typed<void(const at::Tensor&, c10::ScalarType, std::int64_t, bool, const MaybeTensor&,
                                         const MaybeTensor&, const MaybeTensor&, const MaybeTensor&, const MaybeTensor&,
                                         const MaybeTensor&, const MaybeTensor&)>();
  op.call(values, options.type, static_cast<std::int64_t>(options.granularity), options.powers_of_two,
          maybe(options.scale), maybe(options.amax), is_wanted, maybe(out.rows.data), maybe(out.rows.inverse),
          maybe(out.columns.data), maybe(out.columns.inverse));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(pianola, library) {
  library.def(
      "fp8_quantize_(Tensor values, ScalarType type, int granularity, bool powers_of_two, Tensor? scale, Tensor(a!)? "
      "amax, "
      "Tensor? is_wanted, Tensor(b!)? rows, Tensor(c!)? rows_inverse, Tensor(d!)? columns, Tensor(e!)? "
      "columns_inverse) -> "
      "()");
}
TORCH_LIBRARY_IMPL(pianola, CompositeExplicitAutograd, library) { library.impl("fp8_quantize_", &quantize_kernel); }

void quantize_by_operators(const at::Tensor& values, const QuantizeRequest& request) {
  const MaybeTensor& is_wanted = request.is_wanted;
  // Read from memory: no operation, as for a device's kernel.
  if (is_wanted && is_wanted->is_cpu() && !*is_wanted->const_data_ptr<bool>()) return;
  const Granularity granularity = request.granularity;
  const Quantized made = computed(values, {.type = request.type,
                                           .granularity = granularity,
                                           .powers_of_two = request.powers_of_two,
                                           .rows = request.rows.has_value(),
                                           .columns = request.columns.has_value(),
                                           .scale = request.scale.value_or(at::Tensor())});
  const auto put_into = [&](const Factor& factor, const MaybeTensor& data, const MaybeTensor& inverse) {
    if (data) put(factor, {.data = *data, .inverse = *inverse, .granularity = granularity}, is_wanted);
  };
  put_into(made.rows, request.rows, request.rows_inverse);
  put_into(made.columns, request.columns, request.columns_inverse);
  if (request.amax) note_amax(values, *request.amax, is_wanted);
}

at::Tensor scale_of(const at::Tensor& amax, c10::ScalarType type, bool powers_of_two) {
  const at::Tensor divided = at::full_like(amax, largest_of(type)).div_(amax).clamp_max_(kLargestFloat);
  at::Tensor scale = at::where(at::isfinite(amax).logical_and_(amax.ne(0)), divided, at::full_like(amax, 1.0));
  if (powers_of_two) scale = scale.view(at::kInt).bitwise_and(0x7f800000).view(at::kFloat);
  return scale;
}

Quantized quantize(const at::Tensor& values, const QuantizeOptions& options) {
  check(values, options);
  Quantized out;
  if (options.rows) out.rows = empty_factor(values.size(0), values.size(1), values, options);
  if (options.columns) out.columns = empty_factor(values.size(1), values.size(0), values, options);
  call(out, values, options, std::nullopt);
  return out;
}

void quantize_into(const Quantized& out, const at::Tensor& values, const QuantizeOptions& options,
                   const at::Tensor& is_wanted) {
  check(values, options);
  call(out, values, options, maybe(is_wanted));
}

at::Tensor dequantize(const Factor& factor) {
  const at::Tensor values = factor.data.to(at::kFloat);
  if (factor.inverse.dim() == 0) return values * factor.inverse;
  const std::int64_t rows = values.size(0) / factor.inverse.size(0), columns = values.size(1) / factor.inverse.size(1);
  return (in_blocks(values, rows, columns) * factor.inverse.unsqueeze(1).unsqueeze(3)).view(values.sizes());
}

}  // namespace pianola::fp8
