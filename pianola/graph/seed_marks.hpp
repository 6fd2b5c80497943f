#pragma once
#include <ATen/core/Generator.h>

#include <cstdint>
#include <vector>

namespace pianola::graph {

// Note [Marks of recordings]
// The tape cannot replay that a step sets a generator, and nothing tells it so: the state that is set may be the one that
// the generator has, or one that was saved in another recording. So while the tape records, the CPU generators carry a mark
// that no state from elsewhere has: in the seed, which a CPU generator keeps beside its numbers for torch.initial_seed() and
// draws nothing from. Draws, also of other threads, keep the mark and are what they would be without it; whatever is set
// from elsewhere has none. Recordings that are open at once, on several threads, share a mark.

/// While it lives, CPU generators carry a mark. Any thread.
class SeedMarks {
 public:
  explicit SeedMarks(const std::vector<at::Generator>& generators);
  SeedMarks(const SeedMarks&) = delete;
  SeedMarks& operator=(const SeedMarks&) = delete;
  ~SeedMarks();

  /// Whether all still carry it: none was seeded, or set to a state from elsewhere.
  [[nodiscard]] bool intact() const;
  /// Marks anew those that do not.
  void renew() const;

  /// The seed without a mark, and to set it; both with the generator's lock.
  [[nodiscard]] static std::uint64_t seed_of(const at::Generator& generator);
  static void put_seed(const at::Generator& generator, std::uint64_t seed);

 private:
  std::vector<at::Generator> generators_;
};

}  // namespace pianola::graph
