#pragma once
#include <pianola/core/error.hpp>
#include <pianola/distributed/statement.hpp>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace pianola::distributed {

// Note [Agreement of ranks]
// Each rank that has captured a graph which communicates states in the store of its process groups what that holds, and reads what the
// others state: the members of its groups, the members of theirs, and so on. A rank that states nothing within a while has no graph at
// this point. All who read the same come to the same result (find_disagreement()), so that all refuse, or none. A rank that comes after
// the others' patience may refuse alone. This happens once per capture; replays exchange nothing. A rank takes its statements back when
// their group ends, since another group of its name may begin in the same store; and old ones before, so that the store does not grow.
// Lines of code that are at odds stay there: a rank that was refused may end its groups before the others have read them.

/// Compares what is captured in this process with what others have captured.
class Agreement {
 public:
  struct Options {
    std::chrono::milliseconds patience{2'000};  ///< For ranks that state nothing,
    std::chrono::milliseconds again{50};        ///< and where one of the group did so before.
    std::chrono::milliseconds interval{2};      ///< Between two looks.
    std::size_t most_processes = 64;            ///< Of more nothing is known.
  };

  explicit Agreement(Options options) : options_(options) {}
  static Agreement& of_this_process();

  /// @param store     That all ranks have.
  /// @param place_of  The line of a call of this process: "train.py:12".
  /// @return  Why the graphs cannot be replayed together, in words that are the same on all ranks; none: they can.
  [[nodiscard]] std::optional<Diagnosis> find_objection(Statement statement,
                                                        const c10::intrusive_ptr<c10d::Store>& store,
                                                        const std::function<std::string(const Call&)>& place_of);
  /// The group ends; another one of its name begins anew.
  void forget(std::string_view group);

 private:
  using Clock = std::chrono::steady_clock;

  struct Stated {
    c10::intrusive_ptr<c10d::Store> store;
    std::deque<std::string> keys;
  };

  void count_captures(Statement& statement);
  void state(const Membership& one, const std::string& key, const std::string& text,
             const c10::intrusive_ptr<c10d::Store>& store);
  [[nodiscard]] std::vector<Statement> read_all(const Statement& own, c10d::Store& store);
  [[nodiscard]] Clock::time_point end_of_patience(const Statement& statement);
  [[nodiscard]] std::optional<std::string> wait_for(c10d::Store& store, const std::string& key,
                                                    Clock::time_point end) const;

  Options options_;
  std::mutex mutex_;
  std::map<std::string, std::int64_t, std::less<>> captures_;  // by group and what it had run
  std::set<std::string, std::less<>> silent_;                  // groups of which one stated nothing
  std::map<std::string, Stated, std::less<>> stated_;          // by group
};

/// Where ranks that share one of these groups meet: the store of torch.distributed's default group, in which no other world reads; of
/// programs without one, that of the largest group. @return  nullptr: there is none.
[[nodiscard]] c10::intrusive_ptr<c10d::Store> common_store(
    const std::vector<c10::intrusive_ptr<c10d::ProcessGroup>>& groups);

}  // namespace pianola::distributed
