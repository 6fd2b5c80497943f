#pragma once
#include <pianola/profile/analyse/analysis.hpp>
#include <pianola/profile/analyse/host_pace.hpp>
#include <pianola/profile/timeline.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace pianola::profiling {

/// What of a training iteration some work belongs to.
enum class Part : std::uint8_t { forward, backward, optimizer, rest };
inline constexpr std::size_t kParts = 4;

/// The work of one part of an iteration.
struct PartWork {
  std::size_t nodes = 0;     ///< Kernels, copies and memsets.
  std::size_t launches = 0;  ///< Calls that issued them.
  Nanoseconds busy = 0;      ///< Sum of their durations.
  Nanoseconds host = 0;      ///< What the host takes to issue it, from the launch before on.
  TimeSpan issued = {};      ///< On the host: from the first call that launches a kernel to the last; empty without.
};

/// The modules that make up most of a model, all of one kind: "TransformerEncoderLayer", eight of them.
struct Layers {
  std::string kind;
  std::size_t count = 0;  ///< 0: the profile tells of none.
  PartWork work;          ///< Of their forward passes.
};

/// One iteration, taken apart.
struct WorkParts {
  std::array<PartWork, kParts> parts;
  Layers layers;
  bool knows_parts = false;  ///< Something tells forward and backward apart: modules, or autograd's nodes.

  /// Of the forward passes' time that of the layers, 0 to 1. The share in the backward passes is taken to be the same.
  [[nodiscard]] double layer_share() const;
  [[nodiscard]] const PartWork& operator[](Part part) const { return parts[static_cast<std::size_t>(part)]; }
  [[nodiscard]] PartWork& operator[](Part part) { return parts[static_cast<std::size_t>(part)]; }
};

/// Of the iteration whose duration is the median. What torch annotates ("Optimizer.step#..."), autograd's nodes, modules,
/// and, where there are no ranges, the names of optimizers' kernels tell parts apart.
/// @param pace  Of that iteration.
[[nodiscard]] WorkParts take_apart(const Timeline& timeline, const Analysis& analysis, const HostPace& pace);

}  // namespace pianola::profiling
