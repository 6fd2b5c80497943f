#include <pianola/verify/bits.hpp>

#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <ATen/ops/cat.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>

namespace pianola::verification {
namespace {

// Elements that one comparison takes at a time: its flags need a byte each.
constexpr std::int64_t kAtOnce = 1 << 26;

at::ScalarType integer_of(std::size_t bytes) {
  switch (bytes) {
    case 1:
      return at::kChar;
    case 2:
      return at::kShort;
    case 4:
      return at::kInt;
    default:
      return at::kLong;
  }
}

// Elements that lie in host memory as they are, one after the other.
bool is_plain(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.is_cpu() && tensor.has_storage() && tensor.is_contiguous() &&
         trace::bytes_are_values(tensor);
}

bool same_bytes(const at::Tensor& one, const at::Tensor& other) {
  return one.numel() == 0 || std::memcmp(one.const_data_ptr(), other.const_data_ptr(), one.nbytes()) == 0;
}

bool same_on_host(const at::Tensor& one, const at::Tensor& other) {
  return same_bytes(one.contiguous(), other.contiguous());
}

at::Tensor differ_on_device(const at::Tensor& one, const at::Tensor& other) {
  if (one.numel() <= kAtOnce) return at::ne(one, other).any();
  const at::Tensor left = one.flatten();
  const at::Tensor right = other.flatten();
  at::Tensor differ;
  for (std::int64_t begin = 0; begin < left.numel(); begin += kAtOnce) {
    const std::int64_t count = std::min(kAtOnce, left.numel() - begin);
    const at::Tensor part = at::ne(left.narrow(0, begin, count), right.narrow(0, begin, count)).any();
    differ = differ.defined() ? differ.logical_or(part) : part;
  }
  return differ;
}

}  // namespace

at::Tensor bits_of(const at::Tensor& tensor) {
  const trace::QuietScope quiet;
  at::Tensor plain = tensor;
  if (plain.layout() != at::kStrided) plain = plain.to_dense();
  if (plain.is_quantized()) plain = plain.int_repr();
  if (plain._is_zerotensor()) plain = plain.clone();
  plain = plain.resolve_conj().resolve_neg();
  if (plain.scalar_type() == at::kComplexDouble) plain = at::view_as_real(plain);
  return plain.view(integer_of(plain.itemsize()));
}

void BitCheck::add(const at::Tensor& one, const at::Tensor& other) {
  if (is_plain(one) && is_plain(other)) {
    answers_.push_back({.equal = same_bytes(one, other), .differ = {}});
    return;
  }
  const trace::QuietScope quiet;
  at::Tensor left = bits_of(one);
  at::Tensor right = bits_of(other);
  if (left.device() != right.device()) {
    left = left.cpu();
    right = right.cpu();
  }
  if (!left.is_cpu()) {
    try {
      answers_.push_back({.equal = false, .differ = differ_on_device(left, right).view({1})});
      return;
    } catch (const c10::OutOfMemoryError&) {
      left = left.cpu();
      right = right.cpu();
    }
  }
  answers_.push_back({.equal = same_on_host(left, right), .differ = {}});
}

std::vector<bool> BitCheck::take() {
  const trace::QuietScope quiet;
  std::vector<bool> equal;
  std::map<std::string, std::vector<std::size_t>> by_device;
  for (std::size_t i = 0; i < answers_.size(); ++i) {
    equal.push_back(answers_[i].equal);
    if (answers_[i].differ.defined()) by_device[answers_[i].differ.device().str()].push_back(i);
  }
  for (const auto& [device, indices] : by_device) {
    std::vector<at::Tensor> flags;
    for (const std::size_t index : indices) flags.push_back(answers_[index].differ);
    const at::Tensor differ = at::cat(flags).cpu();
    for (std::size_t i = 0; i < indices.size(); ++i) equal[indices[i]] = !differ.const_data_ptr<bool>()[i];
  }
  answers_.clear();
  return equal;
}

}  // namespace pianola::verification
