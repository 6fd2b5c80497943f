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

bool accumulates(const ObservedRuns& runs, OpAt at) {
  const ObservedRun& run = runs.run(at.run);
  return at.op < run.notes.size() && run.nodes[run.notes[at.op].node].find("AccumulateGrad") != std::string::npos;
}

bool takes_gradient_of_input(const ObservedRuns& runs, OpAt at) {
  const auto tensors = runs.inputs(at);
  return std::any_of(tensors.begin(), tensors.end(),
                     [&](const TensorRecord& tensor) { return runs.run(at.run).is_gradient_of_input(tensor.storage); });
}

// Whether an operation that takes this memory in one run takes other memory from outside in the other one: that is told.
bool takes_another_in(const ObservedRuns& runs, std::size_t other, OpAt at, const void* memory) {
  for (std::size_t op = 0; op < at.op; ++op) {
    const auto here = runs.inputs({at.run, op});
    const auto there = runs.inputs({other, op});
    for (std::size_t i = 0; i < here.size(); ++i) {
      if (here[i].storage != memory || there[i].storage == memory) continue;
      if (there[i].storage != nullptr && !there[i].made_in_step && !there[i].number) return true;
    }
  }
  return false;
}

// Whether it first comes by in this run. Of the first run nobody knows whether somebody dropped the gradient before, unless
// the step does not use the leaf in each run, which is told.
bool had_no_gradient_yet(const ObservedRuns& runs, std::size_t run, std::size_t leaf, const void* memory) {
  if (run == 0) {
    return std::any_of(runs.runs().begin(), runs.runs().end(),
                       [&](const ObservedRun& one) { return one.find_outside(memory) == nullptr; });
  }
  const auto& gradients = runs.run(run).gradients;
  const auto& earlier = runs.run(run - 1).gradients;
  if (leaf >= gradients.size()) return true;
  return !gradients[leaf].before.known() && (leaf >= earlier.size() || !earlier[leaf].after.known());
}

// Adds to the gradient of a leaf that another run does not use, or has no gradient of yet.
bool adds_to_gradient_of_one_run(const ObservedRuns& runs, OpAt at, std::size_t other) {
  const auto& gradients = runs.run(at.run).gradients;
  for (const TensorRecord& tensor : runs.inputs(at)) {
    if (tensor.made_in_step || tensor.storage == nullptr) continue;
    const auto added_to = std::find_if(gradients.begin(), gradients.end(), [&](const GradientNote& gradient) {
      return gradient.before.identity == tensor.storage || gradient.after.identity == tensor.storage;
    });
    if (added_to == gradients.end() || !added_to->leaf_memory.known()) continue;
    const void* const memory = added_to->leaf_memory.identity;
    const auto leaf = static_cast<std::size_t>(added_to - gradients.begin());
    return takes_another_in(runs, other, at, memory) || had_no_gradient_yet(runs, other, leaf, memory);
  }
  return false;
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

bool stops_at_accumulation(const ObservedRuns& runs, const RunPair& pair) {
  const OpAt a{pair.a, pair.alignment.ops}, b{pair.b, pair.alignment.ops};
  const bool in_a = accumulates(runs, a), in_b = accumulates(runs, b);
  if (!in_a && !in_b) return false;
  if (gradients_were_dropped(runs, pair)) return true;
  if ((!in_a || takes_gradient_of_input(runs, a)) && (!in_b || takes_gradient_of_input(runs, b))) return true;
  return in_a && in_b && (adds_to_gradient_of_one_run(runs, a, b.run) || adds_to_gradient_of_one_run(runs, b, a.run));
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
