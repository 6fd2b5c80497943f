#include <pianola/cuda/kernel_name.hpp>

#include <cxxabi.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <memory>

namespace pianola {
namespace {

constexpr std::string_view kAnonymous = "(anonymous namespace)";

// The position behind the bracket that closes the one at `open`, or the end of the text.
std::size_t behind_match(std::string_view text, std::size_t open) {
  int depth = 0;
  for (std::size_t i = open; i < text.size(); ++i) {
    if (text[i] == '(' || text[i] == '<' || text[i] == '{' || text[i] == '[') ++depth;
    if (text[i] == '>' && i > 0 && text[i - 1] == '-') continue;  // The arrow of a trailing return type.
    if (text[i] == ')' || text[i] == '>' || text[i] == '}' || text[i] == ']') --depth;
    if (depth == 0) return i + 1;
  }
  return text.size();
}

// Wrappers of kernels: what they run is their first template argument.
bool says_nothing(std::string_view name) {
  static constexpr std::array<std::string_view, 4> kWrappers = {"cutlass::Kernel", "cutlass::Kernel2",
                                                                "cutlass::device_kernel", "cutlass::KernelUniversal"};
  return std::find(kWrappers.begin(), kWrappers.end(), name) != kWrappers.end();
}

// The first of the template arguments that `text` begins with.
std::string_view first_argument(std::string_view text) {
  std::size_t i = 1;
  while (i < text.size() && text[i] != ',' && text[i] != '>') {
    const bool opens = text[i] == '<' || text[i] == '(' || text[i] == '{' || text[i] == '[';
    i = opens ? behind_match(text, i) : i + 1;
  }
  while (i > 1 && text[i - 1] == ' ') --i;
  return text.substr(1, i - 1);
}

}  // namespace

std::string demangle(const std::string& symbol) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status),
                                                         &std::free);
  return status == 0 && name ? std::string(name.get()) : symbol;
}

std::string short_kernel_name(std::string_view demangled) {
  std::string name;
  std::string_view arguments;  // From the '<' of the last template in the name.
  for (std::size_t i = 0; i < demangled.size();) {
    const std::string_view rest = demangled.substr(i);
    if (rest.starts_with(kAnonymous)) {
      name += kAnonymous;
      i += kAnonymous.size();
    } else if (rest.front() == '<') {
      arguments = rest;
      i = behind_match(demangled, i);
    } else if (rest.front() == '(') {
      i = behind_match(demangled, i);
      if (!demangled.substr(i).starts_with("::")) break;  // Else they belong to a function around the kernel.
    } else if (rest.front() == ' ') {
      name.clear();  // What came before was the return type.
      ++i;
    } else if (rest.front() == '[') {
      break;  // "[clone .part.0]"
    } else {
      name += rest.front();
      ++i;
    }
  }
  if (name.empty()) return std::string(demangled);
  if (!arguments.empty() && says_nothing(name)) {
    name += '<';
    name += short_kernel_name(first_argument(arguments));
    name += '>';
  }
  return name;
}

}  // namespace pianola
