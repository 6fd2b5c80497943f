#pragma once
#include <pianola/core/error.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

// Calls a C++ function with c10::IValues, whatever its parameters are.
namespace pianola::detail {

/// A module's forward as a function object; overloads, templates and default arguments stay what they are.
template <typename M>
struct Forward {
  M& module;
  template <typename... Arguments>
  auto operator()(Arguments&&... arguments) -> decltype(module.forward(std::forward<Arguments>(arguments)...)) {
    return module.forward(std::forward<Arguments>(arguments)...);
  }
};

template <typename... Parameters>
struct ParameterList {
  using Tuple = std::tuple<std::decay_t<Parameters>...>;
};

/// The parameters of a function that has one signature only; void otherwise.
template <typename F>
struct ParametersOf {
  using type = void;
};
template <typename R, typename... P>
struct ParametersOf<R (*)(P...)> {
  using type = typename ParameterList<P...>::Tuple;
};
template <typename R, typename C, typename... P>
struct ParametersOf<R (C::*)(P...)> {
  using type = typename ParameterList<P...>::Tuple;
};
template <typename R, typename C, typename... P>
struct ParametersOf<R (C::*)(P...) const> {
  using type = typename ParameterList<P...>::Tuple;
};
template <typename F>
requires requires { &F::operator(); }
struct ParametersOf<F> : ParametersOf<decltype(&F::operator())> {};
template <typename M>
requires requires { &M::forward; }
struct ParametersOf<Forward<M>> : ParametersOf<decltype(&M::forward)> {};

template <typename F, typename... Arguments>
c10::IValue call(F& function, Arguments&&... arguments) {
  using Result = decltype(function(std::forward<Arguments>(arguments)...));
  if constexpr (std::is_void_v<Result>) {
    function(std::forward<Arguments>(arguments)...);
    return {};
  } else {
    return c10::IValue(function(std::forward<Arguments>(arguments)...));
  }
}

inline bool all_tensors(const std::vector<c10::IValue>& arguments) {
  return std::all_of(arguments.begin(), arguments.end(), [](const c10::IValue& value) { return value.isTensor(); });
}

/// Calls with exactly these tensors if the function can be called so.
template <typename F, std::size_t... I>
std::optional<c10::IValue> call_with_tensors(F& function, const std::vector<c10::IValue>& arguments,
                                             std::index_sequence<I...> /*positions*/) {
  if constexpr (std::is_invocable_v<F&, decltype((void(I), arguments[0].toTensor()))...>) {
    if (arguments.size() == sizeof...(I)) return call(function, arguments[I].toTensor()...);
  }
  return std::nullopt;
}

template <typename F, std::size_t... Counts>
std::optional<c10::IValue> call_with_any_number(F& function, const std::vector<c10::IValue>& arguments,
                                                std::index_sequence<Counts...> /*counts*/) {
  std::optional<c10::IValue> result;
  (void)((result = call_with_tensors(function, arguments, std::make_index_sequence<Counts>())).has_value() || ...);
  return result;
}

template <typename T>
struct IsOptional : std::false_type {};
template <typename T>
struct IsOptional<std::optional<T>> : std::true_type {};

template <typename T>
T convert(const std::vector<c10::IValue>& arguments, std::size_t position) {
  if (position < arguments.size()) {
    if constexpr (std::is_same_v<T, at::Tensor>) {
      return arguments[position].isNone() ? at::Tensor() : arguments[position].toTensor();
    } else {
      return arguments[position].to<T>();
    }
  }
  if constexpr (IsOptional<T>::value || std::is_same_v<T, at::Tensor>) {
    return T();
  } else {
    throw UsageError({.what = "the callable takes more arguments than the " + std::to_string(arguments.size()) +
                              " it was given, and argument " + std::to_string(position + 1) + " is not optional"});
  }
}

template <typename Parameters, typename F, std::size_t... I>
c10::IValue call_by_signature(F& function, const std::vector<c10::IValue>& arguments,
                              std::index_sequence<I...> /*positions*/) {
  if (arguments.size() > sizeof...(I)) {
    throw UsageError({.what = "the callable takes " + std::to_string(sizeof...(I)) + " arguments, but was given " +
                              std::to_string(arguments.size())});
  }
  return call(function, convert<std::tuple_element_t<I, Parameters>>(arguments, I)...);
}

inline constexpr std::size_t kMostTensors = 12;

template <typename F, std::size_t... I>
constexpr bool takes_tensors(std::index_sequence<I...> /*positions*/) {
  return std::is_invocable_v<F&, decltype((void(I), std::declval<const at::Tensor&>()))...>;
}
template <typename F, std::size_t... Counts>
constexpr bool takes_any_number_of_tensors(std::index_sequence<Counts...> /*counts*/) {
  return (takes_tensors<F>(std::make_index_sequence<Counts>()) || ...);
}

template <typename F>
inline constexpr bool kTakesTensors = takes_any_number_of_tensors<F>(std::make_index_sequence<kMostTensors + 1>());

/// A template or an overload set that tensors fit: asking it for other parameters would instantiate what cannot compile.
template <typename F>
inline constexpr bool kIsGeneric = kTakesTensors<F>&& std::is_void_v<typename ParametersOf<F>::type>;

/// What invoke() can call.
template <typename F>
concept CanBeInvoked =
    kTakesTensors<F> || !std::is_void_v<typename ParametersOf<F>::type> ||
    std::is_invocable_v<F&, std::vector<c10::IValue>> || std::is_invocable_v<F&, std::vector<at::Tensor>>;

template <typename F>
c10::IValue invoke_with_values(F& function, std::vector<c10::IValue> arguments) {
  using Parameters = typename ParametersOf<F>::type;
  if constexpr (std::is_invocable_v<F&, std::vector<c10::IValue>>) {
    return call(function, std::move(arguments));
  } else if constexpr (std::is_invocable_v<F&, std::vector<at::Tensor>>) {
    if (arguments.size() == 1 && arguments[0].isTensorList()) return call(function, arguments[0].toTensorVector());
    std::vector<at::Tensor> tensors;
    for (const c10::IValue& value : arguments) tensors.push_back(value.isNone() ? at::Tensor() : value.toTensor());
    return call(function, std::move(tensors));
  } else {
    return call_by_signature<Parameters>(function, arguments,
                                         std::make_index_sequence<std::tuple_size_v<Parameters>>());
  }
}

template <typename F>
c10::IValue invoke(F& function, std::vector<c10::IValue> arguments) {
  if constexpr (kTakesTensors<F>) {
    if (all_tensors(arguments)) {
      const auto counts = std::make_index_sequence<kMostTensors + 1>();
      if (auto result = call_with_any_number(function, arguments, counts)) return *std::move(result);
    }
  }
  if constexpr (!kIsGeneric<F>) {
    return invoke_with_values(function, std::move(arguments));
  } else {
    throw UsageError(
        {.what = "the callable cannot be called with these " + std::to_string(arguments.size()) + " arguments",
         .fix = "give it tensors in the number it takes, or wrap it in a lambda that takes a "
                "std::vector<c10::IValue>"});
  }
}

}  // namespace pianola::detail
