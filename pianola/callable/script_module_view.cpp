#include <pianola/callable/script_module_view.hpp>

#include <torch/csrc/jit/api/module.h>

namespace pianola::callable {
namespace {

const at::Tensor kNoTensor;

}  // namespace

ScriptModuleView::ScriptModuleView(const torch::jit::Module& root) {
  for (const auto& item : root.named_modules()) read(item.name, item.value._ivalue());
}

void ScriptModuleView::read(const std::string& name, const Object& object) {
  const c10::ClassType& type = *object->type();
  if (const auto slot = type.findAttributeSlot("training")) {
    flags_.push_back({.module = name, .object = object, .slot = *slot});
  }
  for (std::size_t slot = 0; slot < type.numAttributes(); ++slot) {
    if (!object->getSlot(slot).isTensor()) continue;
    const at::Tensor tensor = object->getSlot(slot).toTensor();
    const std::string& own = type.getAttributeName(slot);
    const std::string full = name.empty() ? own : name + "." + own;
    attributes_.push_back(
        {.object = object,
         .slot = slot,
         .known = type.is_parameter(slot) ? KnownTensor::parameter(full, tensor) : KnownTensor::buffer(full, tensor)});
  }
}

const at::Tensor& ScriptModuleView::Attribute::now() const {
  const c10::IValue& value = object->slots()[slot];
  return value.isTensor() ? value.toTensor() : kNoTensor;
}

bool ScriptModuleView::training() const { return flags_.empty() || flags_.front().now(); }

void ScriptModuleView::set_training(bool training) const {
  for (const Flag& flag : flags_) flag.set(training);
}

std::vector<bool> ScriptModuleView::flags() const {
  std::vector<bool> result;
  for (const Flag& flag : flags_) result.push_back(flag.now());
  return result;
}

void ScriptModuleView::set_flags(const std::vector<bool>& flags) const {
  for (std::size_t i = 0; i < flags_.size(); ++i) flags_[i].set(flags[i]);
}

bool ScriptModuleView::has_flags(const std::vector<bool>& flags) const {
  bool same = true;
  for (std::size_t i = 0; i < flags_.size(); ++i) same &= flags_[i].now() == flags[i];
  return same;
}

std::vector<std::string> ScriptModuleView::differing_flags(const std::vector<bool>& flags) const {
  std::vector<std::string> result;
  for (std::size_t i = 0; i < flags_.size(); ++i) {
    if (flags_[i].now() != flags[i]) result.push_back(flags_[i].module);
  }
  return result;
}

bool ScriptModuleView::has_its_parameters() const {
  bool same = true;
  for (const Attribute& attribute : attributes_) same &= attribute.known.is(attribute.now());
  return same;
}

std::vector<std::string> ScriptModuleView::parameter_differences() const {
  std::vector<std::string> result;
  for (const Attribute& attribute : attributes_) {
    if (auto difference = attribute.known.difference(attribute.now())) result.push_back(*std::move(difference));
  }
  return result;
}

std::vector<at::Tensor> ScriptModuleView::differentiable_parameters() const {
  std::vector<at::Tensor> result;
  for (const Attribute& attribute : attributes_) {
    if (attribute.known.is_differentiable()) result.push_back(attribute.known.tensor());
  }
  return result;
}

std::optional<std::string> ScriptModuleView::name_of(const at::Tensor& parameter) const {
  for (const Attribute& attribute : attributes_) {
    if (attribute.known.tensor().is_same(parameter)) return attribute.known.name();
  }
  return std::nullopt;
}

}  // namespace pianola::callable
