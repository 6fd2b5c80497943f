#pragma once
#include <pianola/distributed/statement.hpp>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pianola::distributed {

// Note [Votes of ranks]
// What all ranks do together or none does (a pool of theirs goes to sleep), each prepares, votes on, and does only then. A rank has one
// entry for each vote of its process groups in their store, and an entry is written once: by its rank, or in its place by one that has
// waited long enough, as absent. So all who read an entry read the same, whenever they do. A vote is lost where one entry of the groups,
// or of the other groups of their members and so on, is an objection, is absent, or is of another call. A rank that comes too late finds
// itself absent, and votes in the next one, so that after a vote that was missed the ranks come together again. As with collectives, all
// ranks of a group call in the same order.
// When a group ends, a rank may still be reading the vote that another one has found to be won. So the entries of the last one that was won
// stay in the store. Another group of that name and size finds them on all ranks, and passes over that vote.

/// A rank's part in a vote.
struct Ballot {
  std::string call;                           ///< What is voted on: "suspend()".
  std::string name;                           ///< Of the rank, for messages: "rank 3".
  std::optional<std::string> objection = {};  ///< Why it cannot; none: it can.
  bool lacks_memory = false;                  ///< That is why.
};

/// Why a vote is lost.
struct Objection {
  std::string why;  ///< "rank 3 cannot: a capture is open".
  bool lacks_memory = false;
};

/// The votes of this process.
class RankVote {
 public:
  struct Options {
    std::chrono::milliseconds first_interval{1}, longest_interval{50};  ///< Between two looks.
  };

  explicit RankVote(Options options) : options_(options) {}
  static RankVote& of_this_process();

  /// Votes, and waits for the others; not where this rank objects.
  /// @param groups    Of which it is a member; `moment` is of no account.
  /// @param store     That all ranks have.
  /// @param patience  For ranks that have not voted.
  /// @return  None: all ranks are for it.
  /// @throws c10::Error  The store cannot be reached.
  [[nodiscard]] std::optional<Objection> vote(const std::vector<Membership>& groups, const Ballot& ballot,
                                              const c10::intrusive_ptr<c10d::Store>& store,
                                              std::chrono::milliseconds patience);
  /// The group ends; another one of its name begins anew. What others may be reading of the last vote stays in the store.
  void forget(std::string_view group);

 private:
  using Clock = std::chrono::steady_clock;

  // Of a group of which this process is a member.
  struct Known {
    std::int64_t next = 0;  // vote
    c10::intrusive_ptr<c10d::Store> store = {};
    std::deque<std::string> own = {};   // entries in the store, but the one of
    std::string won{};                  // the last vote that was won; "": none
    std::vector<std::string> absent{};  // that it has written for others
  };

  [[nodiscard]] Membership next_vote(const Membership& group, const c10::intrusive_ptr<c10d::Store>& store);
  void write(const Membership& vote, const std::string& entry, c10d::Store& store);
  [[nodiscard]] std::string read(const Membership& vote, std::int64_t member, c10d::Store& store, Clock::time_point end,
                                 std::chrono::milliseconds patience);
  void keep_won(const Membership& vote);

  Options options_;
  std::mutex mutex_;
  std::map<std::string, Known, std::less<>> known_;
};

}  // namespace pianola::distributed
