#include <pianola/callable/callable.hpp>

#include <pianola/callable/function_view.hpp>
#include <pianola/callable/nn_module_view.hpp>
#include <pianola/callable/script_module_view.hpp>

#include <torch/csrc/jit/api/module.h>

#include <utility>

namespace pianola {

Callable Callable::of_module(Run run, View view) { return {std::move(run), std::move(view)}; }

std::unique_ptr<ModuleView> Callable::view() const {
  return is_module() ? view_() : std::make_unique<callable::FunctionView>();
}

Callable::View Callable::view_of(std::shared_ptr<torch::nn::Module> module) {
  return [module = std::move(module)] { return std::make_unique<callable::NnModuleView>(module); };
}

void Callable::set_script(const torch::jit::Module& module) {
  run_ = [script = module](std::vector<c10::IValue> arguments) mutable { return script.forward(std::move(arguments)); };
  view_ = [module] { return std::make_unique<callable::ScriptModuleView>(module); };
}

}  // namespace pianola
