#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace pianola::profiling {

/// Text for HTML, in and between quotation marks: & < > " ' are escaped, control characters other than line breaks are
/// blanks, and bytes that are not UTF-8 are U+FFFD.
[[nodiscard]] std::string escaped(std::string_view text);

/// escaped(), on one line and with what is behind the first `width` columns left out.
[[nodiscard]] std::string escaped(std::string_view text, std::size_t width);

/// Numbers stay on one line with their units: of a blank between a digit and a unit a non-breaking one is made.
[[nodiscard]] std::string unbroken(std::string html);

/// The name of a kernel as people read it: without "void ", parameters, "[clone ...]", and the namespaces that most of
/// torch's kernels are in, "at::native::" and "(anonymous namespace)::".
[[nodiscard]] std::string readable(std::string_view kernel);

}  // namespace pianola::profiling
