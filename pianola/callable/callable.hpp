#pragma once
#include <pianola/callable/invoke.hpp>
#include <pianola/callable/module_view.hpp>
#include <pianola/core/export.hpp>

#include <ATen/core/ivalue.h>

#include <concepts>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}
namespace torch::jit {
struct Module;
}

namespace pianola {

namespace detail {

template <typename T>
concept ModuleHolder = requires(T& target) {
  typename T::ContainedType;
  target.ptr();
};
template <typename T>
concept ModulePointer = requires(T& target) {
  typename T::element_type;
  target->is_training();
};
template <typename T>
concept CanBeGraphed = std::same_as<T, torch::jit::Module> || ModuleHolder<T> || ModulePointer<T> || CanBeInvoked<T>;

}  // namespace detail

/// Anything that make_graphed_callable can graph. Made implicitly from
///
/// - a torch::nn module: a std::shared_ptr to it, or its holder (torch::nn::Linear);
/// - a TorchScript module: a torch::jit::Module, as torch::jit::load returns it;
/// - a function object: (tensors...), (std::vector<at::Tensor>), (std::vector<c10::IValue>), or with any parameters that a
///   c10::IValue converts to, such as std::tuple, std::optional, c10::Dict, numbers. It returns one tensor, or a tuple,
///   list or map of them.
///
/// Modules of other kinds come in through of_module().
///
/// Arguments that a call leaves out are the defaults of the function's declaration where all others are tensors; else
/// std::nullopt or an undefined tensor.
class Callable {
 public:
  using Run = std::function<c10::IValue(std::vector<c10::IValue>)>;
  using View = std::function<std::unique_ptr<ModuleView>()>;

  /// A module of any kind.
  /// @param run   Its forward pass.
  /// @param view  Looks at the module as it is now; called when it is captured.
  [[nodiscard]] static PIANOLA_API Callable of_module(Run run, View view);

  template <typename T>
  requires(!std::same_as<std::remove_cvref_t<T>, Callable> && detail::CanBeGraphed<std::remove_cvref_t<T>>)
      Callable(T&& target) {  // NOLINT(google-explicit-constructor, bugprone-forwarding-reference-overload)
    using Target = std::remove_cvref_t<T>;
    if constexpr (std::same_as<Target, torch::jit::Module>) {
      set_script(target);
    } else if constexpr (detail::ModuleHolder<Target>) {
      set_module(target.ptr());
    } else if constexpr (detail::ModulePointer<Target>) {
      set_module(std::forward<T>(target));
    } else {
      run_ = [function = std::forward<T>(target)](std::vector<c10::IValue> arguments) mutable {
        return detail::invoke(function, std::move(arguments));
      };
    }
  }

  [[nodiscard]] c10::IValue operator()(std::vector<c10::IValue> arguments) const { return run_(std::move(arguments)); }

  /// Whether it is a module, which has a training and an evaluation mode.
  [[nodiscard]] bool is_module() const noexcept { return view_ != nullptr; }
  /// What the module, or the function, shows of itself now.
  [[nodiscard]] PIANOLA_API std::unique_ptr<ModuleView> view() const;

 private:
  Callable(Run run, View view) : run_(std::move(run)), view_(std::move(view)) {}

  template <typename M>
  void set_module(std::shared_ptr<M> module) {
    view_ = view_of(module);
    run_ = [module = std::move(module)](std::vector<c10::IValue> arguments) {
      detail::Forward<M> forward{*module};
      return detail::invoke(forward, std::move(arguments));
    };
  }
  static PIANOLA_API View view_of(std::shared_ptr<torch::nn::Module> module);
  PIANOLA_API void set_script(const torch::jit::Module& module);

  Run run_;
  View view_;  // empty for functions
};

}  // namespace pianola
