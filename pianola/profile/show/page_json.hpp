#pragma once
#include <pianola/core/embedded_json.hpp>
#include <pianola/profile/analyse/analysis.hpp>
#include <pianola/profile/decide/decision.hpp>
#include <pianola/profile/timeline.hpp>

#include <nlohmann/json.hpp>

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>

namespace pianola::profiling {

using Json = nlohmann::ordered_json;

/// All that the page shows, in the words in which it shows it: page.js makes the page of that. A section without content is null.
///
/// A cell of a table is a text, or an object of these: `text`; `code`; `mark`, a colour of page.css; `note`, shown where the page
/// is narrow; `value`, by which rows are sorted; `bar`, 0 to 1.
[[nodiscard]] Json page_json(const Timeline& timeline, const Analysis& analysis, const Decision& decision,
                             std::string_view title);

/// The typical iteration as rows of marks, in at most `bytes` bytes or close to it.
[[nodiscard]] Json timeline_json(const Timeline& timeline, const Analysis& analysis, std::size_t bytes);

/// A table. Heads of columns of numbers begin with '#', those of columns that narrow pages do without with '~'.
[[nodiscard]] Json table_json(std::string_view caption, std::initializer_list<const char*> heads, Json rows);

/// `text` on one line, without what is behind the first `columns` columns.
[[nodiscard]] std::string cut(std::string_view text, std::size_t columns);

/// The name of a kernel as people read it: without "void ", parameters, "[clone ...]", and the namespaces that most of
/// torch's kernels are in, "at::native::" and "(anonymous namespace)::".
[[nodiscard]] std::string readable(std::string_view kernel);

}  // namespace pianola::profiling
