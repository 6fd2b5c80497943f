#include <pianola/graph/ranks_of_pools.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/out_of_memory_error.hpp>
#include <pianola/distributed/agreement.hpp>
#include <pianola/graph/group_graphs.hpp>
#include <pianola/graph/pool_state.hpp>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace pianola::graph {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr std::chrono::minutes kPatience(10);  // where a group's backend tells no timeout

std::chrono::milliseconds timeout_of(c10d::ProcessGroup& group, c10::DeviceType device) {
  try {
    return group.getBackend(device)->getBackendOptions()->timeout;
  } catch (const std::exception&) {
    return kPatience;
  }
}

// Those of several ranks; one that torch does not know any more has ended.
std::vector<Group> groups_of(const std::vector<std::string>& names) {
  std::vector<Group> groups;
  for (const std::string& name : names) {
    try {
      Group group = c10d::resolve_process_group(name);
      if (group->getSize() > 1) groups.push_back(std::move(group));
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): as said above
    }
  }
  return groups;
}

std::string reason_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    return known.diagnosis().what;
  } catch (const c10::Error& of_torch) {
    return of_torch.what_without_backtrace();
  } catch (const std::exception& other) {
    return other.what();
  } catch (...) {
    return "of an error that has no words";
  }
}

bool is_lack_of_memory(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const OutOfMemoryError&) {
    return true;
  } catch (const c10::OutOfMemoryError&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

bool communicates(const PoolState& pool) { return !groups_of(GroupGraphs::of_this_process().groups_of(pool)).empty(); }

RanksOfPools::RanksOfPools(std::span<const std::shared_ptr<PoolState>> pools, std::string call)
    : call_(std::move(call)), patience_(kPatience) {
  std::vector<std::string> names;
  for (const std::shared_ptr<PoolState>& pool : pools) {
    for (std::string& name : GroupGraphs::of_this_process().groups_of(*pool)) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
    }
  }
  const std::vector<Group> groups = groups_of(names);
  if (groups.empty()) return;
  store_ = distributed::common_store(groups);
  if (!store_) return;
  const auto largest = std::ranges::max_element(groups, {}, [](const Group& group) { return group->getSize(); });
  name_ = fmt::format("rank {}", (*largest)->getRank());
  patience_ = timeout_of(**largest, pools.front()->device().type());
  for (const Group& group : groups) {
    groups_.push_back(
        {.group = group->getGroupName(), .member = group->getRank(), .size = group->getSize(), .moment = ""});
    patience_ = std::min(patience_, timeout_of(*group, pools.front()->device().type()));
  }
}

void RanksOfPools::refuse(const std::exception_ptr& error) noexcept {
  if (groups_.empty()) return;
  try {
    (void)distributed::RankVote::of_this_process().vote(
        groups_,
        {.call = call_, .name = name_, .objection = reason_of(error), .lacks_memory = is_lack_of_memory(error)}, store_,
        patience_);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the first error is the caller's
  }
}

void RanksOfPools::agree() {
  if (groups_.empty()) return;
  std::optional<distributed::Objection> objection;
  try {
    objection =
        distributed::RankVote::of_this_process().vote(groups_, {.call = call_, .name = name_}, store_, patience_);
  } catch (const std::exception& error) {
    objection = distributed::Objection{.why = fmt::format("the ranks' store failed: {}", error.what())};
  }
  if (!objection) return;
  Diagnosis refusal{.what = fmt::format("{} was refused on all ranks of the pool's graphs, and changed nothing: {}",
                                        call_, objection->why),
                    .fix = fmt::format("see to it there, and call {} again at the same point on all ranks", call_)};
  if (!objection->lacks_memory) throw UsageError(std::move(refusal));
  refusal.rule = "PG908";
  throw OutOfMemoryError(std::move(refusal));
}

}  // namespace pianola::graph
