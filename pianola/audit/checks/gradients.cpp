#include <pianola/audit/checks/checks.hpp>

#include <pianola/audit/words.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>

namespace pianola::auditing {
namespace {

std::string leaf_words(const ObservedRun& run, const GradientNote& gradient) {
  const std::string name = run.name_of(gradient.leaf_memory.identity, nullptr);
  return name.empty() ? "" : "'" + name + "'";
}

// "the gradients of 24 parameters ('0.weight', '0.bias', '2.weight', ...)"
std::string words_for(const ObservedRun& run, const std::vector<std::size_t>& leaves) {
  constexpr std::size_t kFew = 3;
  std::vector<std::string> names;
  for (const std::size_t leaf : leaves) {
    if (std::string name = leaf_words(run, run.gradients[leaf]); !name.empty()) names.push_back(std::move(name));
  }
  std::string text =
      leaves.size() == 1 ? "the gradient of a parameter" : fmt::format("the gradients of {} parameters", leaves.size());
  if (names.empty()) return text;
  if (leaves.size() == 1) return "the gradient of " + names[0];
  const bool more = names.size() > kFew;
  names.resize(std::min(names.size(), kFew));
  return fmt::format("{} ({}{})", text, fmt::join(names, ", "), more ? ", ..." : "");
}

// At the line that started the backward pass which made the first of these gradients.
Finding finding_at(const ObservedRuns& runs, std::size_t run, const std::vector<std::size_t>& leaves,
                   std::string_view rule) {
  Finding finding = Finding::of(rule);
  finding.iteration = static_cast<int>(run) + 1;
  for (const std::size_t leaf : leaves) {
    const Survivor* made = runs.run(run).find_survivor(runs.run(run).gradients[leaf].after.identity);
    if (made == nullptr) continue;
    const OpAt at{run, made->op};
    finding.place = runs.own_place(at);
    if (!finding.place.known()) finding.place = runs.place(at);
    break;
  }
  return finding;
}

std::vector<std::size_t> dropped_leaves(const ObservedRuns& runs, const RunPair& pair) {
  std::vector<std::size_t> dropped;
  const auto& in_a = runs.run(pair.a).gradients;
  const auto& in_b = runs.run(pair.b).gradients;
  for (std::size_t leaf = 0; leaf < std::min(in_a.size(), in_b.size()); ++leaf) {
    if (!gradient_was_dropped(in_a[leaf], in_b[leaf])) continue;
    if (runs.run(pair.b).find_survivor(in_b[leaf].after.identity) != nullptr) dropped.push_back(leaf);
  }
  return dropped;
}

}  // namespace

bool gradient_was_dropped(const GradientNote& in_a, const GradientNote& in_b) {
  return in_b.watched_before && in_a.after.known() && in_b.before.identity != in_a.after.identity &&
         in_b.after.known() && in_b.after.identity != in_a.after.identity;
}

bool gradients_were_dropped(const ObservedRuns& runs, const RunPair& pair) {
  const auto& in_a = runs.run(pair.a).gradients;
  const auto& in_b = runs.run(pair.b).gradients;
  for (std::size_t leaf = 0; leaf < std::min(in_a.size(), in_b.size()); ++leaf) {
    if (in_b[leaf].watched_before && in_b[leaf].before.identity != in_a[leaf].after.identity) return true;
  }
  return false;
}

Findings check_gradients(const ObservedRuns& runs) {
  Findings findings;
  for (const RunPair& pair : runs.pairs()) {
    if (pair.b != pair.a + 1) continue;
    if (const auto dropped = dropped_leaves(runs, pair); !dropped.empty()) {
      Finding finding = finding_at(runs, pair.b, dropped, "PG403");
      finding.what = words_for(runs.run(pair.b), dropped) + (dropped.size() == 1 ? " was" : " were") +
                     " dropped between iterations, and made anew by the step";
      finding.evidence = fmt::format("after {}, before {}", iteration(pair.a), iteration(pair.b));
      findings.push_back(std::move(finding));
    }
    if (const auto& kept = runs.run(pair.b).kept_gradients; !kept.empty()) {
      Finding finding = finding_at(runs, pair.b, kept, "PG903");
      finding.what = words_for(runs.run(pair.b), kept) + (kept.size() == 1 ? " is" : " are") +
                     " kept when the next one is computed";
      finding.evidence = fmt::format("made in {}, still held after {}", iteration(pair.a), iteration(pair.b));
      findings.push_back(std::move(finding));
    }
  }
  return findings;
}

}  // namespace pianola::auditing
