#pragma once
#include <pianola/core/export.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace pianola::trace {

// Note [Regions of other numbers]
// In a region of a thread modules compute otherwise than outside: in 8 bits, say. Autograd's autocast is one that torch knows, and looks
// at for each operation; of others only the modules know. A graph holds what they computed when it was captured, so a call has to be in
// a region that computes the same (callable/ambient.hpp). And what a module does to its region when it runs, a replay has to do for it:
// the region computes scales at its end from what was noted in it.

/// A region of this thread. The innermost says how modules compute, the outermost that computes otherwise hears what ran.
class PIANOLA_API NumericRegion {
 public:
  /// @param words  How it computes, for messages: equal words compute the same. Empty: as outside of all regions.
  explicit NumericRegion(const std::string& words);
  NumericRegion(const NumericRegion&) = delete;
  NumericRegion& operator=(const NumericRegion&) = delete;
  virtual ~NumericRegion();

  /// The innermost of this thread; nullptr: none.
  [[nodiscard]] static NumericRegion* current() noexcept;
  /// Of the innermost: the same number for the same words; 0: it computes as outside.
  [[nodiscard]] static std::uint64_t current_number() noexcept;
  /// "none", or the words.
  [[nodiscard]] static std::string words_of(std::uint64_t number);

  /// A module ran in it. @param what  That the outermost region is to hear of, in replays too; may be nullptr.
  void ran(const std::shared_ptr<const void>& what);

 protected:
  /// Of the outermost region: hears what ran.
  virtual void hear(const std::shared_ptr<const void>& what) = 0;
  /// It is no region any more: on the thread where it began, in any order.
  void leave() noexcept;

 private:
  NumericRegion* outer_;
  std::uint64_t number_;
  bool is_open_ = true;
};

/// What ran in regions that were open already, while it lives: of the recording of a graph, or of runs before it that are taken back. These
/// regions do not hear of it: nothing that counts has run.
class RegionUses {
 public:
  RegionUses();
  RegionUses(const RegionUses&) = delete;
  RegionUses& operator=(const RegionUses&) = delete;
  ~RegionUses();

  /// What a replay has to say again. Whether anything ran at all is another question.
  [[nodiscard]] std::vector<std::shared_ptr<const void>> take() { return std::move(uses_); }
  [[nodiscard]] bool any_ran() const noexcept { return any_ran_; }

 private:
  friend class NumericRegion;
  RegionUses* outer_;
  const NumericRegion* inside_;  // of which region
  std::vector<std::shared_ptr<const void>> uses_;
  bool any_ran_ = false;
};

}  // namespace pianola::trace
