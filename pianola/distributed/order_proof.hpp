#pragma once
#include <pianola/distributed/statement.hpp>

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pianola::distributed {

// Note [Ranks that wait for each other]
// A graph launches its collectives in one order, whatever their communicators: NCCL orders what it captures, and two that are not
// ordered deadlock where a device has no room for both kernels. Eager steps are less strict: two all-reduces by two process groups
// that one rank calls in the other order end, as each group has a stream of its own. Their graphs wait for each other for ever. So
// before graphs are replayed for the first time, the ranks compare what they hold:
// - The n-th collective of a group is the n-th for each member, of one kind, with one dtype, reduction and root; what a member gives
//   to another is as long as what that one takes. The n-th message from a member to another is the n-th that is received.
// - Then all ranks are run as their graphs would run. A collective ends when all its members have come to it; a receive when the
//   message was sent; a large send when the message is received, a small one at once, as NCCL buffers it. Messages of a group
//   (batch_isend_irecv) begin together. What does not come to its end waits for ever, and the cycle is told.
// A rank of which nothing is known, because it has no graph at that moment, is taken to do what its peers expect: what it runs
// eagerly may do that. Graphs of different moments are not compared.

/// Why graphs cannot be replayed together.
struct Disagreement {
  /// A call of a rank's graph that has a part in it.
  struct Part {
    std::size_t statement;
    std::size_t call;
  };
  std::string what;  ///< "the ranks wait for each other".
  std::vector<Part> parts;
};

/// @param statements  Each of another process; those that are not of the first one's moment are left out.
/// @return  The first one found; none: all calls come to their end, or those do of which something is known.
[[nodiscard]] std::optional<Disagreement> find_disagreement(std::span<const Statement> statements);

/// "rank 0: all_reduce (Float, sum) of 16 elements by group '0'".
[[nodiscard]] std::string words_of(const Statement& statement, const Call& call);

}  // namespace pianola::distributed
