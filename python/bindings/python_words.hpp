#pragma once
#include <string>

namespace pianola::python {

/// The library's texts in the words of Python: "set CallableOptions::slots" reads as "set slots", "OnMismatch::eager" as
/// "'eager'", "torch::where" as "torch.where". Operators keep their names ("aten::item").
std::string in_python_words(std::string text);

}  // namespace pianola::python
