#include <bindings/python_words.hpp>

#include <algorithm>
#include <cctype>

namespace pianola::python {
namespace {

// The C++ name that ends right before `at`: "CallableOptions" in "set CallableOptions::slots".
std::size_t begin_of_name(const std::string& text, std::size_t at) {
  while (at > 0 && (std::isalnum(static_cast<unsigned char>(text[at - 1])) != 0 || text[at - 1] == '_')) --at;
  return at;
}

}  // namespace

// By hand: torch's libraries bring a std::regex of their own, and a mixture of both crashes.
std::string in_python_words(std::string text) {
  for (std::size_t at = 0; (at = text.find("::", at)) != std::string::npos;) {
    const std::size_t begin = begin_of_name(text, at);
    const std::string name = text.substr(begin, at - begin);
    const std::size_t end = std::min(text.find_first_of(" ,.;()\n", at + 2), text.size());
    if (name.ends_with("Options")) {
      text.erase(begin, at + 2 - begin);
      at = begin;
    } else if (name.starts_with("On") && name.size() > 2) {
      text.insert(end, "'");
      text.replace(begin, at + 2 - begin, "'");
      at = begin;
    } else if (name == "torch" || name == "autograd" || name == "pianola" || name.ends_with("Policy")) {
      text.replace(at, 2, ".");
    } else {
      at += 2;
    }
  }
  return text;
}

}  // namespace pianola::python
