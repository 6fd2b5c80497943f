#include <pianola/distributed/same_tensors.hpp>

#include <pianola/core/error.hpp>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

namespace pianola::distributed {
namespace {

constexpr std::int64_t kMostCharacters = 160;

// "Float[3, 4] with strides [4, 1]".
std::string in_words(const at::Tensor& tensor) {
  return fmt::format("{}[{}] with strides [{}]{}", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "),
                     fmt::join(tensor.strides(), ", "), tensor.requires_grad() ? "" : ", no grad");
}

// FNV-1a: the same in processes whose standard libraries differ. Below 2^62, so that it can be negated.
std::int64_t digest(std::string_view text) {
  std::uint64_t value = 14695981039346656037U;
  for (const char one : text) value = (value ^ static_cast<unsigned char>(one)) * 1099511628211U;
  return static_cast<std::int64_t>(value >> 2U);
}

std::vector<at::Tensor> gather(c10d::ProcessGroup& group, const at::Tensor& own) {
  std::vector<at::Tensor> inputs{own};
  std::vector<std::vector<at::Tensor>> all(1);
  for (int rank = 0; rank < group.getSize(); ++rank) all.front().push_back(at::empty_like(own));
  group.allgather(all, inputs)->wait();
  for (at::Tensor& one : all.front()) one = one.cpu();
  return all.front();
}

std::vector<std::string> gather(c10d::ProcessGroup& group, const std::string& own, c10::Device device) {
  at::Tensor text = at::zeros({kMostCharacters + 1}, at::kByte);
  std::memcpy(text.data_ptr(), own.data(), std::min(own.size(), static_cast<std::size_t>(kMostCharacters)));
  std::vector<std::string> all;
  for (const at::Tensor& one : gather(group, text.to(device)))
    all.emplace_back(static_cast<const char*>(one.const_data_ptr()));
  return all;
}

// The first rank whose text is another one than rank 0's.
[[noreturn]] void refuse(std::string_view what, const std::vector<std::string>& of_ranks) {
  const auto other =
      std::find_if(of_ranks.begin(), of_ranks.end(), [&](const auto& one) { return one != of_ranks.front(); });
  throw UsageError({.what = fmt::format("{}: rank 0 has {}, rank {} has {}", what, of_ranks.front(),
                                        other - of_ranks.begin(), other == of_ranks.end() ? "another one" : *other),
                    .where = "the constructor of GradientReducer",
                    .fix = "make the same model on each rank, and list its tensors in the same order"});
}

void require_same_number(c10d::ProcessGroup& group, std::string_view kind, std::size_t number, c10::Device device) {
  const at::Tensor own = at::tensor({static_cast<std::int64_t>(number)}, at::kLong).to(device);
  std::vector<std::string> of_ranks;
  for (const at::Tensor& one : gather(group, own))
    of_ranks.push_back(fmt::format("{}", *one.const_data_ptr<std::int64_t>()));
  if (std::any_of(of_ranks.begin(), of_ranks.end(), [&](const auto& one) { return one != of_ranks.front(); }))
    refuse(fmt::format("not all ranks have the same number of {}s", kind), of_ranks);
}

// Index of the first digest that is not the same on all ranks.
std::optional<std::size_t> first_difference(c10d::ProcessGroup& group, std::vector<std::int64_t> digests,
                                            c10::Device device) {
  const at::Tensor own = at::tensor(digests, at::kLong);
  std::vector<at::Tensor> both{at::stack({own, own.neg()}).to(device)};
  group.allreduce(both, {.reduceOp = c10d::ReduceOp::MIN})->wait();
  const at::Tensor found = both.front().cpu();
  const auto* const least = found.const_data_ptr<std::int64_t>();
  const auto* const most = least + digests.size();  // negated
  for (std::size_t i = 0; i < digests.size(); ++i) {
    if (least[i] != -most[i]) return i;
  }
  return std::nullopt;
}

}  // namespace

void require_same_tensors(c10d::ProcessGroup& group, std::string_view kind, const std::vector<at::Tensor>& tensors,
                          c10::Device device) {
  require_same_number(group, kind, tensors.size(), device);
  if (tensors.empty()) return;
  std::vector<std::int64_t> digests;
  for (const at::Tensor& tensor : tensors) digests.push_back(digest(in_words(tensor)));
  const auto difference = first_difference(group, digests, device);
  if (!difference) return;
  refuse(fmt::format("{} {} is not the same on all ranks", kind, *difference),
         gather(group, in_words(tensors[*difference]), device));
}

}  // namespace pianola::distributed
