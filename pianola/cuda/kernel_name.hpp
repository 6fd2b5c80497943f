#pragma once
#include <string>
#include <string_view>

namespace pianola {

/// The C++ name of a mangled symbol; the symbol itself where it is none (extern "C", Triton, cuBLAS).
[[nodiscard]] std::string demangle(const std::string& symbol);

/// A demangled name without return type, template arguments and parameters:
///
///     "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<...> >(at::native::ReduceOp<...>)"
///     -> "at::native::reduce_kernel"
///
/// Kernels whose name says nothing without its arguments, such as cutlass::Kernel2<...>, keep the first one, shortened.
[[nodiscard]] std::string short_kernel_name(std::string_view demangled);

}  // namespace pianola
