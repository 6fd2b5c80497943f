#include <pianola/callable/output_origin.hpp>

#include <pianola/core/error.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/as_strided.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace pianola::callable {
namespace {

struct Extent {  // in elements of the storage
  std::int64_t begin;
  std::int64_t end;
};

Extent extent_of(const at::Tensor& tensor) {
  const std::int64_t begin = tensor.storage_offset();
  return {begin, begin + static_cast<std::int64_t>(trace::span_bytes_of(tensor) / tensor.itemsize())};
}

bool share_memory(const at::Tensor& one, const at::Tensor& other) {
  return trace::storage_of(one) != nullptr && trace::storage_of(one) == trace::storage_of(other);
}

// Read by another dtype, or conjugated on the way: no strides say that.
void check_is_plain_view(std::size_t output, const at::Tensor& tensor, const std::string& of, const at::Tensor& base) {
  if (tensor.scalar_type() == base.scalar_type() && tensor.is_conj() == base.is_conj() &&
      tensor.is_neg() == base.is_neg()) {
    return;
  }
  throw UsageError(
      {.what = fmt::format("output {} is a view of {} with another dtype or conjugated, which a replay cannot renew",
                           output, of),
       .fix = "return a clone() of it"});
}

OutputOrigin part_of(OutputOrigin::Kind kind, std::size_t position, const at::Tensor& tensor, std::int64_t begin) {
  return {.kind = kind,
          .position = position,
          .sizes = tensor.sizes().vec(),
          .strides = tensor.strides().vec(),
          .offset = tensor.storage_offset() - begin};
}

}  // namespace

at::Tensor OutputOrigin::view_of(const at::Tensor& base) const {
  return base.as_strided(sizes, strides, base.storage_offset() + offset);
}

void EarlierResults::note(const std::vector<at::Tensor>& results) {
  memory_.clear();
  tensors_.clear();
  for (const at::Tensor& result : results) {
    if (result.has_storage()) memory_.insert(result.storage());
    tensors_.emplace_back(result.getIntrusivePtr());
  }
}

Before EarlierResults::holds(const at::Tensor& result) const {
  const bool itself = std::any_of(tensors_.begin(), tensors_.end(), [&](const auto& known) {
    return known._unsafe_get_target() == result.unsafeGetTensorImpl();
  });
  if (itself) return Before::itself;
  return result.has_storage() && memory_.contains(trace::storage_of(result)) ? Before::memory : Before::no;
}

void OutputOrigins::find(const std::vector<at::Tensor>& outputs, std::span<const at::Tensor> inputs,
                         const std::function<Before(const at::Tensor&)>& before) {
  origins_.assign(outputs.size(), {});
  regions_.clear();
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const at::Tensor& output = outputs[i];
    const auto input =
        std::find_if(inputs.begin(), inputs.end(), [&](const at::Tensor& one) { return share_memory(one, output); });
    if (input != inputs.end()) {
      const auto position = static_cast<std::size_t>(input - inputs.begin());
      check_is_plain_view(i, output, fmt::format("input {}", position), *input);
      origins_[i] = part_of(OutputOrigin::Kind::input, position, output, input->storage_offset());
      origins_[i].is_itself = output.is_same(*input);
      continue;
    }
    const Before there = before(output);
    if (there == Before::no) continue;
    const bool has_base = there == Before::memory && output.is_view() &&
                          output._base().scalar_type() == output.scalar_type() && !output.is_conj() && !output.is_neg();
    const at::Tensor base = has_base ? at::Tensor(output._base()) : output;
    origins_[i] = part_of(OutputOrigin::Kind::outside, 0, output, base.storage_offset());
    origins_[i].tensor = base.detach();
    origins_[i].is_itself = there == Before::itself;
    if (origins_[i].is_itself) origins_[i].itself = output.getIntrusivePtr();
  }
  find_shared(outputs);
  plain_ = std::all_of(origins_.begin(), origins_.end(),
                       [](const OutputOrigin& origin) { return origin.kind == OutputOrigin::Kind::made; });
  known_ = true;
}

bool OutputOrigins::are_made_by_the_graph(std::size_t output) const {
  const OutputOrigin::Kind kind = origins_[output].kind;
  return kind != OutputOrigin::Kind::input && kind != OutputOrigin::Kind::outside;
}

bool OutputOrigins::use_inputs() const noexcept {
  return std::any_of(origins_.begin(), origins_.end(),
                     [](const OutputOrigin& origin) { return origin.kind == OutputOrigin::Kind::input; });
}

void OutputOrigins::find_shared(const std::vector<at::Tensor>& outputs) {
  std::vector<bool> seen(outputs.size(), false);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (seen[i] || origins_[i].kind != OutputOrigin::Kind::made) continue;
    std::vector<std::size_t> group;
    for (std::size_t k = i; k < outputs.size(); ++k) {
      if (k != i && !share_memory(outputs[i], outputs[k])) continue;
      group.push_back(k);
      seen[k] = true;
    }
    if (group.size() > 1) share(outputs, group);
  }
}

// One that covers all is what the others are views of: the one that eager has for their base, if it is among them.
void OutputOrigins::share(const std::vector<at::Tensor>& outputs, const std::vector<std::size_t>& group) {
  Extent whole = extent_of(outputs[group.front()]);
  for (const std::size_t i : group) {
    check_is_plain_view(i, outputs[i], fmt::format("output {}", group.front()), outputs[group.front()]);
    whole.begin = std::min(whole.begin, extent_of(outputs[i]).begin);
    whole.end = std::max(whole.end, extent_of(outputs[i]).end);
  }
  const auto covers = [&](std::size_t i) {
    const Extent extent = extent_of(outputs[i]);
    return extent.begin == whole.begin && extent.end == whole.end && outputs[i].is_non_overlapping_and_dense();
  };
  auto base =
      std::find_if(group.begin(), group.end(), [&](std::size_t i) { return covers(i) && !outputs[i].is_view(); });
  if (base == group.end()) base = std::find_if(group.begin(), group.end(), covers);
  if (base == group.end()) {
    regions_.push_back({.output = group.front(), .offset = whole.begin, .elements = whole.end - whole.begin});
  }
  for (const std::size_t i : group) {
    if (base == group.end()) {
      origins_[i] = part_of(OutputOrigin::Kind::region, regions_.size() - 1, outputs[i], whole.begin);
    } else if (i != *base) {
      origins_[i] = part_of(OutputOrigin::Kind::output, *base, outputs[i], outputs[*base].storage_offset());
    }
  }
}

std::vector<at::Tensor> OutputOrigins::regions_of(const std::vector<at::Tensor>& outputs) const {
  std::vector<at::Tensor> result;
  for (const Region& region : regions_) {
    result.push_back(outputs[region.output].detach().as_strided({region.elements}, {1}, region.offset));
  }
  return result;
}

namespace {

bool is_among(const std::vector<std::size_t>* positions, std::size_t output) {
  return positions != nullptr && std::binary_search(positions->begin(), positions->end(), output);
}

// Without a history of its base: it gets one of its own, or none. Where gradients are off it is eager's view of the
// moment.
at::Tensor lend(const OutputOrigin& origin, const at::Tensor& base, bool base_gets_history, bool gets_history) {
  if (gets_history) {
    const at::NoGradGuard set_later;
    return origin.view_of(base);
  }
  if (origin.is_itself) return base;
  const bool hide = at::GradMode::is_enabled() && (base.requires_grad() || base_gets_history);
  return origin.view_of(hide ? base.detach() : base);
}

// Whoever has it has replaced it by another one where it is gone: the guards see to that.
at::Tensor outside_tensor(const OutputOrigin& origin) {
  if (origin.is_itself) {
    if (auto itself = origin.itself.lock()) return at::Tensor(std::move(itself));
  }
  return origin.tensor;
}

}  // namespace

std::vector<at::Tensor> OutputOrigins::own_memory(std::span<const at::Tensor> outputs,
                                                  std::span<const at::Tensor> regions) const {
  std::vector<at::Tensor> own;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (origins_[i].kind == OutputOrigin::Kind::made) own.push_back(outputs[i]);
  }
  own.insert(own.end(), regions.begin(), regions.end());
  return own;
}

std::vector<at::Tensor> OutputOrigins::give_out(const Call& call) const {
  std::vector<at::Tensor> result(call.outputs.size());
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (plain_ || origins_[i].kind == OutputOrigin::Kind::made) result[i] = call.fresh(call.outputs[i]);
  }
  if (plain_) [[likely]]
    return result;
  std::vector<at::Tensor> regions;
  for (const at::Tensor& region : call.regions) regions.push_back(call.fresh(region));
  for (std::size_t i = 0; i < result.size(); ++i) {
    const OutputOrigin& origin = origins_[i];
    const bool gets_history = is_among(call.differentiable, i);
    switch (origin.kind) {
      case OutputOrigin::Kind::made:
        break;
      case OutputOrigin::Kind::input:
        result[i] = lend(origin, call.inputs[origin.position], false, gets_history);
        break;
      case OutputOrigin::Kind::outside:
        result[i] = lend(origin, outside_tensor(origin), false, gets_history);
        break;
      case OutputOrigin::Kind::output:
        result[i] = lend(origin, result[origin.position], is_among(call.differentiable, origin.position), gets_history);
        break;
      case OutputOrigin::Kind::region:
        result[i] = lend(origin, regions[origin.position], false, gets_history);
        break;
    }
  }
  return result;
}

}  // namespace pianola::callable
