#pragma once
#include <pianola/trace/call_site.hpp>

#include <span>
#include <string>
#include <string_view>

namespace pianola::trace {

/// The class of the optimizer in whose step these user scopes are open: "AdamW". Optimizers of torch's Python interface, and
/// those that users derive from them, open "Optimizer.step#AdamW.step". Empty where none is.
[[nodiscard]] std::string_view optimizer_in(std::span<const std::string> scopes);

/// Of an operation with such an open scope, or with none, and the place where it was called: the optimizer that called it,
/// also one of torch's C++ interface. Empty where none did, or the closure that it was given. Slow.
[[nodiscard]] std::string optimizer_at(const CallSite& site, std::string_view scope);

}  // namespace pianola::trace
