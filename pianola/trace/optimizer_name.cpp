#include <pianola/trace/optimizer_name.hpp>

#include <pianola/core/source_place.hpp>

#include <algorithm>
#include <vector>

namespace pianola::trace {
namespace {

bool is_in(const SourcePlace& frame, std::string_view folder) { return frame.file.find(folder) != std::string::npos; }

// Every step goes through optimizer.py; other files there hold the optimizers of torch's own.
bool is_own_optimizer(const SourcePlace& frame) {
  return is_in(frame, "torch/optim/") && !is_in(frame, "torch/optim/optimizer.py");
}

// Code of the user's that an optimizer of torch's calls is a closure, which computes the loss anew.
bool is_closure(std::span<const SourcePlace> frames) {
  const auto inner = std::find_if(frames.begin(), frames.end(), [](const SourcePlace& frame) {
    return is_in(frame, "torch/optim/") || !is_in(frame, "/torch/");
  });
  if (inner == frames.end() || is_in(*inner, "torch/optim/")) return false;
  return std::any_of(inner, frames.end(), is_own_optimizer);
}

// "torch::optim::AdamW::step(...)".
std::string native_optimizer(std::span<const SourcePlace> frames) {
  constexpr std::string_view kNamespace = "torch::optim::", kStep = "::step";
  for (const SourcePlace& frame : frames) {
    const std::size_t begin = frame.function.find(kNamespace);
    const std::size_t end = frame.function.find(kStep, begin == std::string::npos ? begin : begin + kNamespace.size());
    if (begin == std::string::npos || end == std::string::npos) continue;
    std::string name = frame.function.substr(begin + kNamespace.size(), end - begin - kNamespace.size());
    if (name.find_first_of(":( ") == std::string::npos) return name;
  }
  return "";
}

}  // namespace

std::string_view optimizer_in(std::span<const std::string> scopes) {
  constexpr std::string_view kBefore = "Optimizer.step#", kAfter = ".step";
  for (auto scope = scopes.rbegin(); scope != scopes.rend(); ++scope) {
    std::string_view name = *scope;
    if (!name.starts_with(kBefore)) continue;
    name.remove_prefix(kBefore.size());
    if (name.ends_with(kAfter)) name.remove_suffix(kAfter.size());
    return name;
  }
  return "";
}

std::string optimizer_at(const CallSite& site, std::string_view scope) {
  const std::vector<SourcePlace> frames = site.script_frames();
  if (frames.empty()) return scope.empty() ? native_optimizer(site.native_frames()) : std::string(scope);
  return is_closure(frames) ? "" : std::string(scope);
}

}  // namespace pianola::trace
