#pragma once
#include <pianola/core/export.hpp>

#include <span>
#include <string_view>

namespace pianola {

/// What a hazard does to a graph, worst first.
enum class Severity {
  breaks_capture,  ///< CUDA or Pianola refuses to record it.
  wrong_numbers,   ///< It is recorded, and replays may compute something else than eager would.
  memory,          ///< It costs memory, or overwrites or frees memory that is still in use.
  performance,     ///< It reduces what a graph gains.
  style,           ///< It works, but code on the host runs once, at capture.
};

/// "breaks capture"
[[nodiscard]] PIANOLA_API std::string_view in_words(Severity severity) noexcept;

/// One kind of thing that goes wrong when PyTorch code is captured. Audit, capture, replay and verification report by
/// these rules; docs/reference/hazards shows a wrong and a right program for each.
struct HazardRule {
  std::string_view id;     ///< "PG101": never changes, and is never given to another rule.
  std::string_view kind;   ///< "host-value": the same in words, for programs.
  Severity severity;       ///< Of most cases; a finding may know better.
  std::string_view title;  ///< "a tensor's value is read on the host"
  std::string_view why;    ///< What a graph does with it, in one sentence.
  std::string_view fix;    ///< What to do instead.
  bool cuda_only = false;  ///< There is no such thing on the CPU.
};

/// All rules, by id.
[[nodiscard]] PIANOLA_API std::span<const HazardRule> hazard_rules() noexcept;

/// @param id  An id or a kind. @throws UsageError  There is no such rule.
[[nodiscard]] PIANOLA_API const HazardRule& hazard_rule(std::string_view id);

}  // namespace pianola
