#include <pianola/callable/known_tensor.hpp>

#include <pianola/core/error.hpp>
#include <pianola/graph/placement.hpp>

#include <fmt/format.h>

#include <utility>

namespace pianola {

KnownTensor::KnownTensor(std::string name, at::Tensor tensor, bool is_buffer)
    : name_(std::move(name)),
      tensor_(std::move(tensor)),
      placement_(is_buffer ? std::make_shared<graph::Placement>(*tensor_.unsafeGetTensorImpl()) : nullptr),
      requires_grad_(tensor_.defined() && tensor_.requires_grad()) {}

KnownTensor KnownTensor::parameter(std::string name, const at::Tensor& tensor) {
  return {std::move(name), tensor, /*is_buffer=*/false};
}

KnownTensor KnownTensor::buffer(std::string name, const at::Tensor& tensor) {
  KnownTensor known(std::move(name), tensor, /*is_buffer=*/true);
  if (known.requires_grad_) {
    throw UsageError({.what = fmt::format("buffer '{}' requires grad; its gradient would be lost", known.name_),
                      .fix = "register it as a parameter, or call requires_grad_(false) on it",
                      .rule = "PG904"});
  }
  return known;
}

bool KnownTensor::is(const at::Tensor& now) const {
  return now.is_same(tensor_) && (!now.defined() || now.requires_grad() == requires_grad_) &&
         (placement_ == nullptr || placement_->is_of(*now.unsafeGetTensorImpl()));
}

std::optional<std::string> KnownTensor::difference(const at::Tensor& now) const {
  if (is(now)) return std::nullopt;
  const std::string which = fmt::format("{} '{}'", placement_ != nullptr ? "buffer" : "parameter", name_);
  if (!now.is_same(tensor_)) return fmt::format("{}: the module has another tensor now", which);
  if (now.requires_grad() != requires_grad_) {
    return fmt::format("{}: requires grad: captured {}", which, requires_grad_ ? "yes, now no" : "no, now yes");
  }
  return fmt::format("{}: {}", which, in_words(placement_->change(*now.unsafeGetTensorImpl())));
}

}  // namespace pianola
