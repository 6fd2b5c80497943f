#include <pianola/training/batch_memory.hpp>

#include <pianola/trace/quiet_scope.hpp>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>

namespace pianola::training {
namespace {

constexpr std::size_t kAlignment = 512;

// A tensor of its own, no view of the block: autograd then tells apart which of them a step has changed.
at::Tensor tensor_at(const TensorPlace& place, const at::Tensor& block) {
  const auto offset = static_cast<std::int64_t>(place.offset / c10::elementSize(place.dtype));
  return at::empty({0}, block.options().dtype(place.dtype)).set_(block.storage(), offset, place.sizes, place.strides);
}

}  // namespace

std::size_t TensorPlace::bytes() const noexcept {
  std::size_t elements = 1;
  for (const std::int64_t size : sizes) elements *= static_cast<std::size_t>(size);
  return elements * c10::elementSize(dtype);
}

BatchLayout::BatchLayout(std::vector<TensorPlace> places) : places_(std::move(places)) {
  for (TensorPlace& place : places_) {
    place.offset = (bytes_ + kAlignment - 1) / kAlignment * kAlignment;
    bytes_ = place.offset + place.bytes();
  }
}

BatchMemory::BatchMemory(std::span<const BatchLayout> layouts, const c10::TensorOptions& options) {
  const trace::QuietScope quiet;
  const c10::InferenceMode normal_tensors(false);
  std::size_t bytes = 0;
  for (const BatchLayout& layout : layouts) bytes = std::max(bytes, layout.bytes());
  block_ = at::zeros({static_cast<std::int64_t>(bytes)}, options.dtype(c10::kByte));
  for (const BatchLayout& layout : layouts) {
    std::vector<at::Tensor>& tensors = tensors_.emplace_back();
    for (const TensorPlace& place : layout.places()) tensors.push_back(tensor_at(place, block_));
  }
}

at::Tensor BatchMemory::bytes_of(const BatchLayout& layout, std::size_t first, std::size_t last) const {
  const TensorPlace& end = layout.places()[last];
  const std::size_t from = layout.places()[first].offset;
  return block_.narrow(0, static_cast<std::int64_t>(from), static_cast<std::int64_t>(end.offset + end.bytes() - from));
}

}  // namespace pianola::training
