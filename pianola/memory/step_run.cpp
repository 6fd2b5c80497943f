#include <pianola/memory/step_run.hpp>

#include <algorithm>
#include <cstddef>
#include <map>

namespace pianola::memory {

namespace {

std::uintptr_t main_stream_of(const StepRun& run, std::optional<std::uintptr_t> captured) {
  if (captured && std::ranges::find(run.streams, *captured) != run.streams.end()) return *captured;
  if (run.main) return *run.main;
  std::map<std::uintptr_t, std::uint64_t> bytes;
  for (std::size_t i = 0; i < run.blocks.size(); ++i) bytes[run.streams[i]] += in_whole_units(run.blocks[i].bytes);
  const auto most = std::ranges::max_element(bytes, {}, [](const auto& one) { return one.second; });
  return most == bytes.end() ? 0 : most->first;
}

}  // namespace

std::pair<StepRun, StepRun> by_main_stream(const StepRun& run, std::optional<std::uintptr_t> captured) {
  const std::uintptr_t stream = main_stream_of(run, captured);
  StepRun main{.blocks = {}, .made_in = {}, .streams = {}, .operations = run.operations, .main = stream};
  StepRun others = main;
  std::vector<std::size_t> of_main, of_others;
  for (std::size_t i = 0; i < run.blocks.size(); ++i) {
    const bool is_main = run.streams[i] == stream;
    (is_main ? of_main : of_others).push_back(i);
    StepRun& its = is_main ? main : others;
    its.blocks.push_back(run.blocks[i]);
    its.made_in.push_back(run.made_in[i]);
    its.streams.push_back(run.streams[i]);
  }
  main.interference = run.interference.among(of_main);
  others.interference = run.interference.among(of_others);
  return {std::move(main), std::move(others)};
}

void keep_apart_on_main_stream(StepRun& run, const StepRun& of_main) {
  run.main = of_main.main;
  run.interference = Interference(run.blocks.size());
  std::vector<std::size_t> blocks;
  for (std::size_t i = 0; i < run.blocks.size(); ++i) {
    if (run.streams[i] != of_main.main) continue;
    for (std::size_t other = 0; other < blocks.size(); ++other) {
      if (of_main.interference.has(blocks.size(), other)) run.interference.add(i, blocks[other]);
    }
    blocks.push_back(i);
  }
}

}  // namespace pianola::memory
