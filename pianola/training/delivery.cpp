#include <pianola/training/delivery.hpp>

#include <pianola/callable/nested_call.hpp>
#include <pianola/trace/plain_check.hpp>
#include <pianola/trace/tensors_of.hpp>
#include <pianola/training/batch_transfer.hpp>

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace pianola::training {
namespace {

constexpr std::size_t kMostStreams = 4;

BatchLayout layout_of(std::span<const at::Tensor> tensors) {
  std::vector<TensorPlace> places;
  for (const at::Tensor& tensor : tensors) {
    places.push_back({.sizes = tensor.sizes().vec(), .strides = tensor.strides().vec(), .dtype = tensor.scalar_type()});
  }
  return BatchLayout(std::move(places));
}

}  // namespace

bool may_deliver() {
  if (trace::oddity_of_modes() != trace::Oddity::none || trace::function_modes().users) return false;
  return !callable::runs_inside_another({});
}

Delivery::Delivery(std::span<const at::Tensor> there)
    : device_(there.front().device()), layouts_{layout_of(there)}, padding_(there.size()) {}

Delivery::~Delivery() = default;

bool Delivery::Arrived::holds(const at::Tensor& tensor) const {
  return trace::storage_of(tensor) == trace::storage_of(tensors_->front());
}

bool Delivery::takes(std::span<const at::Tensor> inputs) const {
  const auto places = layouts_.front().places();
  return std::equal(inputs.begin(), inputs.end(), places.begin(), places.end(),
                    [](const at::Tensor& input, const TensorPlace& place) {
                      return trace::oddity_of_input(input) == trace::Oddity::none && input.is_cpu() &&
                             !input.requires_grad() && input.scalar_type() == place.dtype &&
                             input.sizes() == place.sizes && input.strides() == place.strides;
                    });
}

BatchTransfer& Delivery::transfer_here() {
  const c10::Stream current = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  auto found =
      std::find_if(transfers_.begin(), transfers_.end(), [&](const auto& one) { return one.first == current; });
  if (found == transfers_.end()) {
    if (transfers_.size() == kMostStreams) transfers_.pop_back();
    const TransferOptions options{.double_buffer = false, .reads_at_once = true};
    transfers_.emplace_back(current, std::make_unique<BatchTransfer>(device_, options, layouts_, padding_));
    found = transfers_.end() - 1;
  }
  std::rotate(transfers_.begin(), found, found + 1);
  return *transfers_.front().second;
}

std::optional<Delivery::Arrived> Delivery::bring(std::vector<at::Tensor> inputs) {
  if (!may_deliver() || is_busy_.test_and_set()) return std::nullopt;
  Arrived arrived(is_busy_);
  BatchTransfer& transfer = transfer_here();
  transfer.send(std::move(inputs), 0);
  transfer.receive();
  arrived.tensors_ = &transfer.statics(0);
  return arrived;
}

}  // namespace pianola::training
