#include <pianola/callable/module_state.hpp>

#include <pianola/core/error.hpp>

#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

#include <fmt/format.h>

namespace pianola {

void Callable::set_script(const torch::jit::Module& module) {
  script_ = std::make_shared<torch::jit::Module>(module);
  run_ = [script = script_](std::vector<c10::IValue> arguments) { return script->forward(std::move(arguments)); };
}

namespace callable {
namespace {

// A module's own dictionary of parameters is protected, and parameters() copies it: too slow to ask at each call.
struct Peek : torch::nn::Module {
  static constexpr auto dictionary = &Peek::parameters_;
};

const torch::OrderedDict<std::string, at::Tensor>& parameters_of(const torch::nn::Module& module) {
  return module.*Peek::dictionary;
}

const at::Tensor kNone;

const void* memory_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl()->data() : nullptr;
}

[[noreturn]] void refuse_buffer(const std::string& name) {
  throw UsageError({.what = fmt::format("buffer '{}' requires grad; its gradient would be lost", name),
                    .fix = "register it as a parameter, or call requires_grad_(false) on it"});
}

std::string described(const std::string& name) {
  return name.empty() ? "the module itself" : fmt::format("'{}'", name);
}

}  // namespace

ModuleState::Known::Known(at::Tensor tensor_, bool is_buffer_)
    : tensor(std::move(tensor_)),
      is_buffer(is_buffer_),
      requires_grad(tensor.defined() && tensor.requires_grad()),
      address(is_buffer_ ? memory_of(tensor) : nullptr) {}

bool ModuleState::Known::is(const at::Tensor& now) const {
  return now.is_same(tensor) && (!now.defined() || now.requires_grad() == requires_grad) &&
         (!is_buffer || memory_of(now) == address);
}

ModuleState::ModuleState(const Callable& callable) {
  if (callable.module() != nullptr) read_module(callable.module());
  if (callable.script() != nullptr) read_script(*callable.script());
}

void ModuleState::read_module(const std::shared_ptr<torch::nn::Module>& root) {
  callable_is_module_ = true;
  for (const auto& item : root->named_modules()) {
    const std::size_t index = modules_.size();
    modules_.push_back(item.value());
    module_names_.push_back(item.key());
    const auto& own = parameters_of(*item.value());
    parameters_of_module_.push_back(own.size());
    for (std::size_t i = 0; i < own.size(); ++i) {
      const at::Tensor& tensor = own[i].value();
      parameters_.push_back({.module = index, .position = i, .known = Known(tensor, /*is_buffer=*/false)});
      dense_.push_back({.impl = tensor.unsafeGetTensorImpl(),
                        .meta = tensor.defined() ? torch::autograd::impl::materialize_autograd_meta(tensor) : nullptr,
                        .requires_grad = tensor.defined() && tensor.requires_grad()});
      parameter_names_.push_back(item.key().empty() ? own[i].key() : item.key() + "." + own[i].key());
    }
  }
  for (const auto& item : root->named_buffers()) {
    if (item.value().defined() && item.value().requires_grad()) refuse_buffer(item.key());
    buffers_.emplace_back(item.value(), /*is_buffer=*/true);
    buffer_names_.push_back(item.key());
  }
}

void ModuleState::read_script(const torch::jit::Module& root) {
  callable_is_module_ = true;
  for (const auto& item : root.named_modules()) {
    const auto object = item.value._ivalue();
    if (const auto slot = object->type()->findAttributeSlot("training")) {
      script_flags_.push_back({.object = object, .slot = *slot});
      module_names_.push_back(item.name);
    }
    for (std::size_t slot = 0; slot < object->type()->numAttributes(); ++slot) {
      if (!object->getSlot(slot).isTensor()) continue;  // plain attributes are read as buffers are
      const Known known(object->getSlot(slot).toTensor(), !object->type()->is_parameter(slot));
      script_parameters_.push_back({.object = object, .slot = slot, .known = known});
      const std::string& name = object->type()->getAttributeName(slot);
      parameter_names_.push_back(item.name.empty() ? name : item.name + "." + name);
    }
  }
  for (const auto& item : root.named_buffers()) {
    if (item.value.defined() && item.value.requires_grad()) refuse_buffer(item.name);
  }
}

bool ModuleState::training() const {
  if (!modules_.empty()) return modules_.front()->is_training();
  if (!script_flags_.empty()) return script_flags_.front().object->getSlot(script_flags_.front().slot).toBool();
  return true;
}

void ModuleState::set_training(bool training) const {
  if (!modules_.empty()) modules_.front()->train(training);
  for (const ScriptFlag& flag : script_flags_) flag.object->setSlot(flag.slot, training);
}

std::vector<bool> ModuleState::flags() const {
  std::vector<bool> result;
  for (const auto& module : modules_) result.push_back(module->is_training());
  for (const ScriptFlag& flag : script_flags_) result.push_back(flag.object->getSlot(flag.slot).toBool());
  return result;
}

void ModuleState::set_flags(const std::vector<bool>& flags) const {
  std::size_t i = 0;
  // A flag is set by train(), which descends: parents come first in the order of named_modules().
  for (const auto& module : modules_) module->train(flags[i++]);
  for (const ScriptFlag& flag : script_flags_) flag.object->setSlot(flag.slot, static_cast<bool>(flags[i++]));
}

bool ModuleState::has_flags(const std::vector<bool>& flags) const {
  bool same = true;
  std::size_t i = 0;
  for (const auto& module : modules_) same &= module->is_training() == flags[i++];
  for (const ScriptFlag& flag : script_flags_) same &= flag.object->getSlot(flag.slot).toBool() == flags[i++];
  return same;
}

std::vector<std::string> ModuleState::differing_flags(const std::vector<bool>& flags) const {
  std::vector<std::string> result;
  const std::vector<bool> now = this->flags();
  for (std::size_t i = 0; i < now.size(); ++i) {
    if (now[i] != flags[i]) result.push_back(described(module_names_[i]));
  }
  return result;
}

// By reference: a count of references for each parameter would cost each call.
const at::Tensor& ModuleState::now(const Parameter& parameter) const {
  const auto& own = parameters_of(*modules_[parameter.module]);
  return parameter.position < own.size() ? own[parameter.position].value() : kNone;
}

const at::Tensor& ModuleState::now(const ScriptParameter& parameter) {
  const c10::IValue& value = parameter.object->slots()[parameter.slot];
  return value.isTensor() ? value.toTensor() : kNone;
}

bool ModuleState::has_its_parameters() const {
  bool same = true;
  const Dense* expected = dense_.data();
  for (std::size_t module = 0; module < modules_.size(); ++module) {
    const auto& items = parameters_of(*modules_[module]).items();
    if (items.size() < parameters_of_module_[module]) return false;
    for (std::size_t i = 0; i < parameters_of_module_[module]; ++i, ++expected) {
      same &= items[i].value().unsafeGetTensorImpl() == expected->impl;
      same &= expected->meta == nullptr || expected->meta->requires_grad_ == expected->requires_grad;
    }
  }
  for (const Known& buffer : buffers_) same &= buffer.is(buffer.tensor);
  for (const ScriptParameter& parameter : script_parameters_) same &= parameter.known.is(now(parameter));
  return same;
}

std::vector<std::string> ModuleState::parameter_differences() const {
  std::vector<std::string> result;
  const auto compare = [&](const Known& known, const at::Tensor& tensor, const std::string& name) {
    if (known.is(tensor)) return;
    const std::string which = fmt::format("{} '{}'", known.is_buffer ? "buffer" : "parameter", name);
    if (!tensor.is_same(known.tensor)) {
      result.push_back(fmt::format("{}: the module has another tensor now", which));
    } else if (tensor.requires_grad() != known.requires_grad) {
      result.push_back(fmt::format("{}: requires grad: captured {}, now {}", which, known.requires_grad ? "yes" : "no",
                                   known.requires_grad ? "no" : "yes"));
    } else {
      result.push_back(
          fmt::format("{}: its memory was replaced (buffer.data = ..., set_() or a resized storage)", which));
    }
  };
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    compare(parameters_[i].known, now(parameters_[i]), parameter_names_[i]);
  }
  for (std::size_t i = 0; i < buffers_.size(); ++i) compare(buffers_[i], buffers_[i].tensor, buffer_names_[i]);
  for (std::size_t i = 0; i < script_parameters_.size(); ++i) {
    compare(script_parameters_[i].known, now(script_parameters_[i]), parameter_names_[i]);
  }
  return result;
}

std::vector<at::Tensor> ModuleState::differentiable_parameters() const {
  std::vector<at::Tensor> result;
  const auto add = [&](const Known& known) {
    if (!known.is_buffer && known.requires_grad) result.push_back(known.tensor);
  };
  for (const Parameter& parameter : parameters_) add(parameter.known);
  for (const ScriptParameter& parameter : script_parameters_) add(parameter.known);
  return result;
}

std::optional<std::string> ModuleState::name_of(const at::Tensor& parameter) const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].known.tensor.is_same(parameter)) return parameter_names_[i];
  }
  for (std::size_t i = 0; i < script_parameters_.size(); ++i) {
    if (script_parameters_[i].known.tensor.is_same(parameter)) return parameter_names_[i];
  }
  return std::nullopt;
}

}  // namespace callable
}  // namespace pianola
