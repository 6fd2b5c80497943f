#include <pianola/distributed/rank_vote.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <exception>
#include <set>
#include <thread>
#include <utility>

namespace pianola::distributed {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMostEntries = 16;  // of this process in a store, for each group

// What is in a store.
struct Entry {
  Ballot ballot;
  bool is_absent = false;
  std::vector<Membership> votes = {};  // `moment` says which one of the group

  [[nodiscard]] std::string to_text() const {
    Json text = {{"call", ballot.call}, {"name", ballot.name}, {"memory", ballot.lacks_memory}, {"absent", is_absent}};
    if (ballot.objection) text["objection"] = *ballot.objection;
    for (const Membership& one : votes) text["votes"].push_back({one.group, one.member, one.size, one.moment});
    return text.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  }
  static Entry from_text(const std::string& from) {
    const Json text = Json::parse(from);
    Entry entry{.ballot = {.call = text.at("call"), .name = text.at("name"), .lacks_memory = text.at("memory")},
                .is_absent = text.at("absent")};
    if (text.contains("objection")) entry.ballot.objection = text.at("objection").get<std::string>();
    for (const Json& one : text.value("votes", Json::array())) {
      entry.votes.push_back(
          {.group = one.at(0), .member = one.at(1), .size = one.at(2), .moment = one.at(3).get<std::string>()});
    }
    return entry;
  }
};

std::string entry_key(const Membership& vote, std::int64_t member) {
  return fmt::format("pianola/votes/{}/{}/{}/{}", vote.group, vote.size, vote.moment, member);
}

// Entries that stay decide nothing, nor does a store that takes none back or has ended before.
void take_back(c10d::Store& store, const std::string& key) noexcept {
  try {
    store.deleteKey(key);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): as said above
  }
}

std::vector<std::uint8_t> in_bytes(std::string_view text) { return {text.begin(), text.end()}; }
std::string in_text(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

std::optional<Objection> objection_in(const Entry& entry, const Ballot& own) {
  if (entry.is_absent) return Objection{.why = *entry.ballot.objection};
  if (entry.ballot.objection) {
    return Objection{.why = fmt::format("{} cannot: {}", entry.ballot.name, *entry.ballot.objection),
                     .lacks_memory = entry.ballot.lacks_memory};
  }
  if (entry.ballot.call == own.call) return std::nullopt;
  return Objection{
      .why = fmt::format("{} called {} where {} called {}", entry.ballot.name, entry.ballot.call, own.name, own.call)};
}

}  // namespace

// Never destroyed, as pools may end after static objects do.
RankVote& RankVote::of_this_process() {
  static auto* const vote = new RankVote({});
  return *vote;
}

std::optional<Objection> RankVote::vote(const std::vector<Membership>& groups, const Ballot& ballot,
                                        const c10::intrusive_ptr<c10d::Store>& store,
                                        std::chrono::milliseconds patience) {
  Entry own{.ballot = ballot};
  for (const Membership& group : groups) own.votes.push_back(next_vote(group, store));
  const std::string text = own.to_text();
  for (const Membership& vote : own.votes) write(vote, text, *store);
  if (ballot.objection) return std::nullopt;  // it is the caller's

  // One that has lost its patience goes on, and notes all that are missing: they join the next vote together.
  const auto end = Clock::now() + patience;
  std::optional<Objection> lost;
  std::vector<Membership> votes = own.votes;
  std::set<std::pair<std::string, std::string>> seen;
  for (std::size_t i = 0; i < votes.size(); ++i) {
    const Membership vote = votes[i];
    if (!seen.emplace(vote.group, vote.moment).second) continue;
    for (std::int64_t member = 0; member < vote.size; ++member) {
      const Entry entry = Entry::from_text(read(vote, member, *store, end, patience));
      if (!lost) lost = objection_in(entry, ballot);
      if (lost && Clock::now() < end) return lost;
      votes.insert(votes.end(), entry.votes.begin(), entry.votes.end());
    }
  }
  if (lost) return lost;
  for (const Membership& vote : own.votes) keep_won(vote);
  return std::nullopt;
}

// The first one in which nobody has noted this rank as absent.
Membership RankVote::next_vote(const Membership& group, const c10::intrusive_ptr<c10d::Store>& store) {
  Membership vote = group;
  const std::lock_guard lock(mutex_);
  Known& known = known_[group.group];
  known.store = store;
  do vote.moment = std::to_string(known.next++);
  while (store->check({entry_key(vote, vote.member)}));
  return vote;
}

// Also where another one has written it meanwhile, as absent: then it is read so.
void RankVote::write(const Membership& vote, const std::string& entry, c10d::Store& store) {
  const std::string key = entry_key(vote, vote.member);
  (void)store.compareSet(key, {}, in_bytes(entry));
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(vote.group);
  if (found == known_.end()) return take_back(store, key);  // the group has ended meanwhile
  Known& known = found->second;
  known.own.push_back(key);
  if (known.own.size() + (known.won.empty() ? 0 : 1) <= kMostEntries) return;
  take_back(store, known.own.front());
  known.own.pop_front();
}

void RankVote::keep_won(const Membership& vote) {
  const std::lock_guard lock(mutex_);
  const auto known = known_.find(vote.group);
  if (known == known_.end()) return;
  Known& of_group = known->second;
  std::string key = entry_key(vote, vote.member);
  std::erase(of_group.own, key);
  if (!of_group.won.empty()) of_group.own.push_front(std::move(of_group.won));
  of_group.won = std::move(key);
}

std::string RankVote::read(const Membership& vote, std::int64_t member, c10d::Store& store, Clock::time_point end,
                           std::chrono::milliseconds patience) {
  const std::string key = entry_key(vote, member);
  for (auto interval = options_.first_interval; !store.check({key});
       interval = std::min(2 * interval, options_.longest_interval)) {
    if (Clock::now() < end) {
      std::this_thread::sleep_for(interval);
      continue;
    }
    Entry absent{.ballot = {}, .is_absent = true};
    absent.ballot.objection = fmt::format("rank {} of process group '{}' has not called it within {} s", member,
                                          vote.group, static_cast<double>(patience.count()) / 1000);
    const std::string entry = in_text(store.compareSet(key, {}, in_bytes(absent.to_text())));
    const std::lock_guard lock(mutex_);
    if (const auto known = known_.find(vote.group); known != known_.end()) known->second.absent.push_back(key);
    return entry;
  }
  return in_text(store.get(key));
}

void RankVote::forget(std::string_view group) {
  const std::lock_guard lock(mutex_);
  const auto known = known_.find(group);
  if (known == known_.end()) return;
  for (const std::string& key : known->second.own) take_back(*known->second.store, key);
  for (const std::string& key : known->second.absent) take_back(*known->second.store, key);
  known_.erase(known);
}

}  // namespace pianola::distributed
