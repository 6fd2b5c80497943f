#include <pianola/callable/nn_module_view.hpp>

#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

namespace pianola::callable {
namespace {

// A module's own dictionary of parameters is protected, and parameters() copies it: too slow to ask at each call.
struct Peek : torch::nn::Module {
  static constexpr auto dictionary = &Peek::parameters_;
};

const torch::OrderedDict<std::string, at::Tensor>& parameters_of(const torch::nn::Module& module) {
  return module.*Peek::dictionary;
}

const at::Tensor kNone;

}  // namespace

NnModuleView::NnModuleView(const std::shared_ptr<torch::nn::Module>& root) {
  for (const auto& item : root->named_modules()) {
    read_own_parameters(item.key(), *item.value());
    modules_.push_back({.name = item.key(), .module = item.value(), .parameters = parameters_of(*item.value()).size()});
  }
  for (const auto& item : root->named_buffers()) buffers_.push_back(KnownTensor::buffer(item.key(), item.value()));
}

NnModuleView::~NnModuleView() = default;

void NnModuleView::read_own_parameters(const std::string& prefix, const torch::nn::Module& module) {
  const auto& own = parameters_of(module);
  for (std::size_t i = 0; i < own.size(); ++i) {
    const at::Tensor& tensor = own[i].value();
    const std::string name = prefix.empty() ? own[i].key() : prefix + "." + own[i].key();
    parameters_.push_back({.module = modules_.size(), .position = i, .known = KnownTensor::parameter(name, tensor)});
    dense_.push_back({.impl = tensor.unsafeGetTensorImpl(),
                      .meta = tensor.defined() ? torch::autograd::impl::materialize_autograd_meta(tensor) : nullptr,
                      .requires_grad = tensor.defined() && tensor.requires_grad()});
  }
}

bool NnModuleView::training() const { return modules_.front().module->is_training(); }

void NnModuleView::set_training(bool training) const { modules_.front().module->train(training); }

std::vector<bool> NnModuleView::flags() const {
  std::vector<bool> result;
  for (const Submodule& submodule : modules_) result.push_back(submodule.module->is_training());
  return result;
}

// A flag is set by train(), which descends: parents come first in the order of named_modules().
void NnModuleView::set_flags(const std::vector<bool>& flags) const {
  for (std::size_t i = 0; i < modules_.size(); ++i) modules_[i].module->train(flags[i]);
}

bool NnModuleView::has_flags(const std::vector<bool>& flags) const {
  bool same = true;
  for (std::size_t i = 0; i < modules_.size(); ++i) same &= modules_[i].module->is_training() == flags[i];
  return same;
}

std::vector<std::string> NnModuleView::differing_flags(const std::vector<bool>& flags) const {
  std::vector<std::string> result;
  for (std::size_t i = 0; i < modules_.size(); ++i) {
    if (modules_[i].module->is_training() != flags[i]) result.push_back(modules_[i].name);
  }
  return result;
}

bool NnModuleView::has_its_parameters() const {
  bool same = true;
  const Dense* expected = dense_.data();
  for (const Submodule& submodule : modules_) {
    const auto& items = parameters_of(*submodule.module).items();
    if (items.size() < submodule.parameters) return false;
    for (std::size_t i = 0; i < submodule.parameters; ++i, ++expected) {
      same &= items[i].value().unsafeGetTensorImpl() == expected->impl;
      same &= expected->meta == nullptr || expected->meta->requires_grad_ == expected->requires_grad;
    }
  }
  for (const KnownTensor& buffer : buffers_) same &= buffer.is(buffer.tensor());
  return same;
}

// By reference: a count of references for each parameter would cost each call.
const at::Tensor& NnModuleView::now(const Parameter& parameter) const {
  const auto& own = parameters_of(*modules_[parameter.module].module);
  return parameter.position < own.size() ? own[parameter.position].value() : kNone;
}

std::vector<std::string> NnModuleView::parameter_differences() const {
  std::vector<std::string> result;
  for (const Parameter& parameter : parameters_) {
    if (auto difference = parameter.known.difference(now(parameter))) result.push_back(*std::move(difference));
  }
  for (const KnownTensor& buffer : buffers_) {
    if (auto difference = buffer.difference(buffer.tensor())) result.push_back(*std::move(difference));
  }
  return result;
}

std::vector<at::Tensor> NnModuleView::differentiable_parameters() const {
  std::vector<at::Tensor> result;
  for (const Parameter& parameter : parameters_) {
    if (parameter.known.is_differentiable()) result.push_back(parameter.known.tensor());
  }
  return result;
}

std::optional<std::string> NnModuleView::name_of(const at::Tensor& parameter) const {
  for (const Parameter& own : parameters_) {
    if (own.known.tensor().is_same(parameter)) return own.known.name();
  }
  return std::nullopt;
}

}  // namespace pianola::callable
