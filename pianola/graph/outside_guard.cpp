#include <pianola/graph/outside_guard.hpp>

#include <pianola/trace/describe.hpp>
#include <pianola/trace/step_memory.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace pianola::graph {
namespace {

std::string name_of(const at::Tensor& tensor, std::span<const NamedTensor> names) {
  const auto named =
      std::find_if(names.begin(), names.end(), [&](const NamedTensor& entry) { return entry.tensor.is_same(tensor); });
  return named == names.end() ? "" : fmt::format("'{}'", named->name);
}

}  // namespace

void OutsideTensors::on_op_begin(const trace::OpSpan& op) {
  host_tensors_.on_op_begin(op);
  for (const c10::IValue& value : op.inputs) {
    trace::for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (!tensor.has_storage() || op.memory->made(tensor) || op.memory->is_host_number(tensor)) return;
      if (seen_.insert(tensor.unsafeGetTensorImpl()).second) tensors_.emplace_back(tensor.getIntrusivePtr());
    });
  }
}

std::vector<at::Tensor> OutsideTensors::alive() const {
  std::vector<at::Tensor> tensors;
  for (const trace::WeakTensor& weak : tensors_) {
    if (auto tensor = weak.lock()) tensors.emplace_back(std::move(tensor));
  }
  return tensors;
}

OutsideGuard::OutsideGuard(std::vector<at::Tensor> tensors, std::span<const NamedTensor> names) {
  std::vector<Watched> candidates;
  std::vector<Words> words;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.has_storage() || add_owner(tensor)) continue;
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    candidates.push_back({.tensor = trace::WeakTensor(tensor.getIntrusivePtr()),
                          .impl = impl,
                          .placement = Placement(*impl),
                          .requires_grad = impl->requires_grad()});
    words.push_back({.name = name_of(tensor, names),
                     .description = trace::describe(tensor),
                     .parameter = tensor.is_leaf() && tensor.requires_grad()});
  }
  tensors.clear();  // what only the run itself held is gone now
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].tensor.expired()) continue;
    watched_.push_back(std::move(candidates[i]));
    words_.push_back(std::move(words[i]));
  }
}

bool OutsideGuard::add_owner(const at::Tensor& tensor) {
  PrivateTensors::Owner owner = PrivateTensors::owner_of(tensor);
  if (owner.expired()) return false;
  const bool known = std::any_of(owners_.begin(), owners_.end(), [&](const PrivateTensors::Owner& one) {
    return !one.owner_before(owner) && !owner.owner_before(one);
  });
  if (!known) owners_.push_back(std::move(owner));
  return true;
}

bool OutsideGuard::owners_live() const noexcept {
  return std::none_of(owners_.begin(), owners_.end(),
                      [](const PrivateTensors::Owner& owner) { return owner.expired(); });
}

void OutsideGuard::watch_gradients(const std::vector<at::Tensor>& leaves) {
  for (const at::Tensor& leaf : leaves) {
    const at::Tensor& gradient = leaf.grad();
    if (!gradient.defined() || !gradient.has_storage()) continue;
    const auto named = std::find_if(watched_.begin(), watched_.end(),
                                    [&](const Watched& watched) { return watched.impl == leaf.unsafeGetTensorImpl(); });
    const std::string name =
        named == watched_.end() ? "" : words_[static_cast<std::size_t>(named - watched_.begin())].name;
    leaves_.emplace_back(leaf.getIntrusivePtr());
    watched_.push_back({.tensor = trace::WeakTensor(gradient.getIntrusivePtr()),
                        .impl = gradient.unsafeGetTensorImpl(),
                        .placement = Placement(*gradient.unsafeGetTensorImpl()),
                        .requires_grad = gradient.requires_grad(),
                        .leaf = leaf.unsafeGetTensorImpl()});
    words_.push_back({.name = name, .description = trace::describe(leaf), .parameter = false});
  }
}

void OutsideGuard::watch_values(const HostTensors& used) {
  for (Watched& watched : watched_) {
    if (!used.computes_with(*watched.impl)) continue;
    const at::Tensor tensor(watched.tensor.lock());
    if (!tensor.is_cpu()) continue;
    const std::byte* begin = trace::address_of(tensor);
    watched.values.assign(begin, begin + trace::span_bytes_of(tensor));
  }
}

bool OutsideGuard::Watched::has_same_values() const noexcept {
  return values.empty() || std::memcmp(placement.address(), values.data(), values.size()) == 0;
}

// The implementation is there, if empty, as long as a weak reference is.
bool OutsideGuard::Watched::intact() const noexcept {
  return !tensor.expired() && placement.is_of(*impl) && impl->requires_grad() == requires_grad &&
         (leaf == nullptr || leaf->grad().unsafeGetTensorImpl() == impl) && has_same_values();
}

bool OutsideGuard::intact() const noexcept {
  for (const Watched& watched : watched_) {
    if (!watched.intact()) return false;
  }
  return owners_live() && dropout_.intact();
}

std::size_t OutsideGuard::first_changed() const noexcept {
  std::size_t i = 0;
  while (i < watched_.size() && watched_[i].intact()) ++i;
  return i;
}

Placement::Change OutsideGuard::Watched::change() const noexcept {
  return tensor.expired() ? Placement::Change::none : placement.change(*impl);
}

const char* OutsideGuard::Watched::other_change() const noexcept {
  if (tensor.expired() || leaf != nullptr) return "replaced";
  if (impl->requires_grad() != requires_grad) return requires_grad ? "frozen" : "made to require grad";
  return "written, and lies on the CPU";
}

std::string OutsideGuard::difference() const {
  if (!dropout_.intact()) return RecurrentDropout::difference();
  const std::size_t changed = first_changed();
  if (changed == watched_.size()) return owners_live() ? "" : "the optimizer that the function uses is gone";
  const std::string subject = words_[changed].description + " that the function reads";
  const Watched& watched = watched_[changed];
  const Placement::Change change = watched.change();
  return change == Placement::Change::none ? fmt::format("{} was {}", subject, watched.other_change())
                                           : fmt::format("{}: {}", subject, in_words(change));
}

Diagnosis OutsideGuard::offence() const {
  const std::size_t changed = first_changed();
  if (changed == watched_.size()) {
    return {.what = "the optimizer whose state the graph uses is gone; nothing was launched",
            .fix = "keep the optimizer as long as the graph lives; or capture again",
            .rule = "PG404"};
  }
  const Watched& watched = watched_[changed];
  const Words& words = words_[changed];
  const std::string whole =
      words.name.empty() ? words.description : fmt::format("{}, {}", words.name, words.description);
  const std::string subject = words.name.empty() ? whole : whole + ",";
  constexpr const char* kAgain = "; nothing was launched";
  if (watched.leaf != nullptr) {
    return {.what = fmt::format("the gradient of {} that the graph writes is no longer its .grad{}", subject, kAgain),
            .fix = "clear gradients in place (zero_grad(set_to_none=False)), or inside the captured step",
            .rule = "PG403"};
  }
  if (watched.tensor.expired()) {
    return {.what = fmt::format("the graph uses {} but nobody holds it any more{}", subject, kAgain),
            .fix = "keep it as long as the graph lives, and write new values into it with copy_(); or capture again",
            .rule = "PG404"};
  }
  if (const Placement::Change change = watched.change(); change != Placement::Change::none) {
    const std::string what = fmt::format("{}: {}{}", whole, in_words(change), kAgain);
    if (change == Placement::Change::geometry) {
      return {.what = what,
              .fix = "give the step a view of it instead of changing it in place; or capture again",
              .rule = "PG502"};
    }
    return {.what = what,
            .fix = "write new values into it with copy_() instead of replacing its data; or capture again",
            .rule = words.parameter ? "PG402" : "PG401"};
  }
  if (!watched.has_same_values()) {
    return {.what = fmt::format("{} lies on the CPU, and was written since the capture{}", subject, kAgain),
            .fix = "keep it on the device and write new values into it with copy_() or fill_(); or capture again",
            .rule = "PG203"};
  }
  return {.what = fmt::format("{} was {} since the capture{}", subject,
                              watched.requires_grad ? "frozen" : "made to require grad", kAgain),
          .fix = "leave requires_grad as it was, or capture again",
          .rule = "PG501"};
}

}  // namespace pianola::graph
