#pragma once
#include <pianola/distributed/rank_vote.hpp>

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace pianola {
class PoolState;
}

namespace pianola::graph {

/// Whether a graph of the pool communicates with other ranks.
[[nodiscard]] bool communicates(const PoolState& pool);

/// The ranks with which the graphs of some pools communicate: they make a call together, or none does. See Note [Votes of ranks].
class RanksOfPools {
 public:
  /// @param call  "suspend()".
  RanksOfPools(std::span<const std::shared_ptr<PoolState>> pools, std::string call);

  /// This rank cannot. Does not wait, and throws nothing: what it cannot tell, the others find out by waiting.
  void refuse(const std::exception_ptr& error) noexcept;
  /// This rank can, and does it if this returns. Waits for the others as long as a collective of theirs would.
  /// @throws UsageError  Another rank cannot, or has not called it, or another call. OutOfMemoryError: another rank lacks memory.
  void agree();

 private:
  std::string call_, name_;
  std::vector<distributed::Membership> groups_;  // none: there is nobody to ask
  c10::intrusive_ptr<c10d::Store> store_;
  std::chrono::milliseconds patience_;
};

}  // namespace pianola::graph
