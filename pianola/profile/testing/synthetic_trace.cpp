#include <pianola/profile/testing/synthetic_trace.hpp>

#include <fmt/format.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace pianola::profiling {
namespace {

// A turn is an operation, its launch, its kernel, the arrow's two ends and a function of Python.
constexpr std::size_t kEventsOfTurn = 6;
constexpr std::size_t kTurnsOfIteration = 166;
constexpr std::uint64_t kTurnNanoseconds = 10'000;

std::string time(std::uint64_t nanoseconds) { return fmt::format("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000); }

std::string annotation(std::size_t iteration, std::uint64_t now) {
  return fmt::format(
      "  {{\n    \"ph\": \"X\", \"cat\": \"user_annotation\", \"name\": \"ProfilerStep#{}\", \"pid\": 4242, \"tid\": "
      "4242,\n"
      "    \"ts\": {}, \"dur\": {},\n    \"args\": {{\n      \"External id\": {},\"Record function id\": 0, \"Ev "
      "Idx\": {}\n"
      "    }}\n  }},\n",
      iteration, time(now), time(kTurnsOfIteration * kTurnNanoseconds), iteration, iteration);
}

std::string operation(std::size_t turn, std::uint64_t now) {
  return fmt::format(
      "  {{\n    \"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"aten::op_{}\", \"pid\": 4242, \"tid\": 4242,\n"
      "    \"ts\": {}, \"dur\": 8.125,\n    \"args\": {{\n      \"External id\": {},\"Record function id\": 0, "
      "\"Sequence number\": {}, \"Fwd thread id\": 0, \"Ev Idx\": {}\n    }}\n  }},\n",
      turn % 40, time(now + 100), turn, turn, turn);
}

std::string python_function(std::size_t turn, std::uint64_t now) {
  return fmt::format(
      "  {{\n    \"ph\": \"X\", \"cat\": \"python_function\", \"name\": \"torch/nn/modules/linear.py({}): forward\", "
      "\"pid\": 4242, \"tid\": 4242,\n    \"ts\": {}, \"dur\": 9.500,\n    \"args\": {{\n      \"Python parent id\": "
      "{}, "
      "\"Python id\": {}, \"Ev Idx\": {}\n    }}\n  }},\n",
      turn % 500, time(now + 50), turn, turn + 1, turn);
}

std::string launch(std::size_t turn, std::uint64_t now) {
  return fmt::format(
      "  {{\n    \"ph\": \"X\", \"cat\": \"cuda_runtime\", \"name\": \"cudaLaunchKernel\", \"pid\": 4242, \"tid\": "
      "4242,\n"
      "    \"ts\": {}, \"dur\": 3.250,\n    \"args\": {{\n      \"External id\": {},\n      \"cbid\": 211, "
      "\"correlation\": {}\n    }}\n  }},\n"
      "  {{\n    \"ph\": \"s\", \"id\": {}, \"pid\": 4242, \"tid\": 4242, \"ts\": {},\n    \"cat\": \"ac2g\", "
      "\"name\": \"ac2g\"\n  }},\n",
      time(now + 4000), turn, turn + 1, turn + 1, time(now + 4000));
}

std::string kernel(std::size_t turn, std::uint64_t now) {
  return fmt::format(
      "  {{\n    \"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"void at::native::vectorized_elementwise_kernel<4, "
      "at::native::functor_{}<float>, std::array<char*, 3ul> >(int, at::native::functor<float>)\", \"pid\": 0, "
      "\"tid\": 7,\n    \"ts\": {}, \"dur\": 5.760,\n    \"args\": {{\n      \"External id\": {},\n      \"queued\": "
      "0, "
      "\"device\": 0, \"context\": 1,\n      \"stream\": 7, \"correlation\": {},\n      \"registers per thread\": 32,\n"
      "      \"shared memory\": 0,\n      \"blocks per SM\": 0.242424,\n      \"warps per SM\": 0.969697,\n"
      "      \"grid\": [32, 1, 1],\n      \"block\": [128, 1, 1],\n      \"est. achieved occupancy %\": 2,\n"
      "      \"graph id\": 0, \"graph node id\": 0\n    }}\n  }},\n"
      "  {{\n    \"ph\": \"f\", \"id\": {}, \"pid\": 0, \"tid\": 7, \"ts\": {},\n    \"cat\": \"ac2g\", \"name\": "
      "\"ac2g\", "
      "\"bp\": \"e\"\n  }},\n",
      turn % 60, time(now + 9000), turn, turn + 1, turn + 1, time(now + 9000));
}

std::size_t turns_of(std::size_t events) { return (events + kEventsOfTurn - 1) / kEventsOfTurn; }

}  // namespace

SyntheticCounts synthetic_counts(std::size_t events) {
  const std::size_t turns = turns_of(events);
  return {.kernels = turns,
          .calls = turns,
          .operations = turns,
          .annotations = (turns + kTurnsOfIteration - 1) / kTurnsOfIteration};
}

void write_synthetic_trace(const std::filesystem::path& file, std::size_t events) {
  std::ofstream out(file, std::ios::binary);
  out << "\n  {\n    \"schemaVersion\": 1,\n    \"deviceProperties\": [\n    {\n      \"id\": 0, \"name\": "
         "\"Synthetic GPU\", \"totalGlobalMem\": 1\n    }\n    ],\n  \"displayTimeUnit\": \"ms\",\n"
         "  \"baseTimeNanoseconds\": 1790857026000000000,\n  \"traceEvents\": [\n";
  std::uint64_t now = 4'482'283'798'715'578;
  for (std::size_t turn = 0; turn < turns_of(events); ++turn, now += kTurnNanoseconds) {
    if (turn % kTurnsOfIteration == 0) out << annotation(turn / kTurnsOfIteration, now);
    out << operation(turn, now) << python_function(turn, now) << launch(turn, now) << kernel(turn, now);
  }
  out << "  {\n    \"name\": \"Record Window End\", \"ph\": \"i\", \"s\": \"g\",\n    \"pid\": \"\", \"tid\": \"\", "
         "\"ts\": "
      << time(now) << "\n  }\n  ],\n  \"traceName\": \"synthetic.json\"\n}";
}

}  // namespace pianola::profiling
