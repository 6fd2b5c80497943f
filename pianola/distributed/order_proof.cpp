#include <pianola/distributed/order_proof.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <numeric>
#include <string_view>
#include <tuple>
#include <utility>

namespace pianola::distributed {
namespace {

// What NCCL keeps of a message that nobody receives yet: NCCL_BUFFSIZE, as it comes.
constexpr std::int64_t kBufferedBytes = std::int64_t{4} << 20U;

using Statements = std::span<const Statement>;
using Part = Disagreement::Part;

// Those of the moment of the first: a rank that has come to another one may do anything at this.
std::vector<std::size_t> of_one_moment(Statements statements) {
  std::map<std::string_view, std::string_view> moments;
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < statements.size(); ++i) {
    const auto& groups = statements[i].groups;
    const bool fits = std::all_of(groups.begin(), groups.end(), [&](const Membership& one) {
      const auto known = moments.find(one.group);
      return !one.moment.empty() && (known == moments.end() || known->second == one.moment);
    });
    if (!fits) continue;
    for (const Membership& one : groups) moments.emplace(one.group, one.moment);
    chosen.push_back(i);
  }
  return chosen;
}

// Calls by their place in their group: the n-th collective of a member, the n-th message from one to another.
struct Groups {
  using Channel = std::tuple<std::string_view, std::int64_t, std::int64_t>;  // group, from, to

  explicit Groups(Statements statements) {
    for (const std::size_t i : of_one_moment(statements)) add(statements[i], i);
  }

  struct Member {
    std::int64_t member;
    std::vector<Part> calls;
  };
  std::map<std::string_view, std::vector<Member>> collectives;  // of members of which something is known
  std::map<Channel, std::vector<Part>> sent, received;
  std::vector<std::size_t> known;  // statements

 private:
  void add(const Statement& statement, std::size_t index) {
    known.push_back(index);
    for (const Membership& one : statement.groups)
      collectives[one.group].push_back({.member = one.member, .calls = {}});
    for (std::size_t i = 0; i < statement.calls.size(); ++i) {
      const Call& call = statement.calls[i];
      const Membership& own = statement.groups[call.group];
      if (!call.is_message()) {
        collectives[own.group].back().calls.push_back({index, i});
      } else if (call.kind == Call::Kind::send) {
        sent[{own.group, own.member, call.peer}].push_back({index, i});
      } else {
        received[{own.group, call.peer, own.member}].push_back({index, i});
      }
    }
  }
};

std::int64_t length(const std::vector<std::int64_t>& lengths, std::int64_t member) {
  if (lengths.empty()) return -1;
  if (lengths.size() == 1) return lengths.front();
  return static_cast<std::size_t>(member) < lengths.size() ? lengths[static_cast<std::size_t>(member)] : -1;
}

class Comparison {
 public:
  Comparison(Statements statements, const Groups& groups) : statements_(statements), groups_(groups) {}

  std::optional<Disagreement> run() {
    for (const auto& [group, members] : groups_.collectives) {
      for (std::size_t i = 1; i < members.size(); ++i) {
        if (auto found = compare(group, members[0], members[i])) return found;
      }
      if (auto found = compare_lengths(group, members)) return found;
    }
    for (const auto& [channel, sends] : groups_.sent) {
      const auto receives = groups_.received.find(channel);
      if (receives == groups_.received.end()) continue;
      for (std::size_t i = 0; i < std::min(sends.size(), receives->second.size()); ++i) {
        if (auto found = compare_message(sends[i], receives->second[i])) return found;
      }
    }
    return std::nullopt;
  }

 private:
  [[nodiscard]] const Statement& statement(Part part) const { return statements_[part.statement]; }
  [[nodiscard]] const Call& call(Part part) const { return statement(part).calls[part.call]; }

  [[nodiscard]] std::optional<Disagreement> compare(std::string_view group, const Groups::Member& one,
                                                    const Groups::Member& other) const {
    const std::size_t both = std::min(one.calls.size(), other.calls.size());
    for (std::size_t i = 0; i < both; ++i) {
      const Call &a = call(one.calls[i]), &b = call(other.calls[i]);
      if (a.kind == b.kind && a.agreed == b.agreed) continue;
      return Disagreement{
          .what = fmt::format("the {} of process group '{}' are not one", ordinal(i, "collectives"), group),
          .parts = {one.calls[i], other.calls[i]}};
    }
    if (one.calls.size() == other.calls.size()) return std::nullopt;
    const auto& longer = one.calls.size() > both ? one : other;
    const Part missed = longer.calls[both];
    const auto& shorter = one.calls.size() > both ? other : one;
    return Disagreement{.what = fmt::format("{} has no {} by process group '{}'", name_of_member(group, shorter.member),
                                            ordinal(both, "collective"), group),
                        .parts = both == 0 ? std::vector{missed} : std::vector{missed, shorter.calls[both - 1]}};
  }

  // "second collective".
  static std::string ordinal(std::size_t index, std::string_view noun) {
    constexpr std::array<std::string_view, 3> kFirst = {"first", "second", "third"};
    return index < kFirst.size() ? fmt::format("{} {}", kFirst[index], noun) : fmt::format("{}th {}", index + 1, noun);
  }

  [[nodiscard]] std::string name_of_member(std::string_view group, std::int64_t member) const {
    for (const std::size_t i : groups_.known) {
      for (const Membership& one : statements_[i].groups) {
        if (one.group == group && one.member == member) return statements_[i].name;
      }
    }
    return fmt::format("member {}", member);
  }

  [[nodiscard]] std::optional<Disagreement> compare_lengths(std::string_view group,
                                                            const std::vector<Groups::Member>& members) const {
    for (const Groups::Member& giver : members) {
      for (const Groups::Member& taker : members) {
        for (std::size_t i = 0; i < std::min(giver.calls.size(), taker.calls.size()); ++i) {
          const std::int64_t given = length(call(giver.calls[i]).gives, taker.member);
          const std::int64_t taken = length(call(taker.calls[i]).takes, giver.member);
          if (given < 0 || taken < 0 || given == taken) continue;
          return Disagreement{
              .what = fmt::format("by the {} of process group '{}' {} gives {} elements to {}, which takes {}",
                                  ordinal(i, "collective"), group, statement(giver.calls[i]).name, given,
                                  statement(taker.calls[i]).name, taken),
              .parts = {giver.calls[i], taker.calls[i]}};
        }
      }
    }
    return std::nullopt;
  }

  [[nodiscard]] std::optional<Disagreement> compare_message(Part sent, Part received) const {
    const Call &a = call(sent), &b = call(received);
    if (a.agreed == b.agreed && a.gives == b.takes) return std::nullopt;
    return Disagreement{.what = "a message is not the one that is received", .parts = {sent, received}};
  }

  Statements statements_;
  const Groups& groups_;
};

// Ranks that run their graphs.
class Run {
 public:
  Run(Statements statements, const Groups& groups) : statements_(statements) {
    for (const std::size_t i : groups.known) {
      ranks_.push_back({.statement = i});
      for (const Membership& one : statements[i].groups)
        members_[one.group].push_back({.rank = ranks_.size() - 1, .member = one.member});
    }
  }

  std::optional<Disagreement> run() {
    for (bool moves = true; moves;) {
      moves = false;
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) moves = advance(rank) || moves;
    }
    const auto waits = [](const Rank& rank) { return !rank.is_done; };
    const auto first = std::find_if(ranks_.begin(), ranks_.end(), waits);
    if (first == ranks_.end()) return std::nullopt;
    return cycle_from(static_cast<std::size_t>(first - ranks_.begin()));
  }

 private:
  struct Rank {
    std::size_t statement;
    std::size_t head = 0;    // its first call that has not ended
    std::size_t issued = 0;  // calls that have begun
    bool is_done = false;
    std::map<std::string_view, std::int64_t> begun = {};  // collectives, by group
    std::map<std::pair<std::string_view, std::int64_t>, std::int64_t> sent = {}, received = {};  // messages, by peer
    std::vector<std::int64_t> numbers = {};  // of the calls that have begun, among their like
  };
  struct Member {
    std::size_t rank;
    std::int64_t member;
  };

  [[nodiscard]] const std::vector<Call>& calls(const Rank& rank) const { return statements_[rank.statement].calls; }
  [[nodiscard]] std::string_view group_of(const Rank& rank, const Call& call) const {
    return statements_[rank.statement].groups[call.group].group;
  }

  // All that begins together ends before the next begins.
  bool advance(std::size_t index) {
    Rank& rank = ranks_[index];
    const std::size_t before = rank.head;
    const std::size_t begun = rank.issued;
    const auto& all = calls(rank);
    while (rank.head < all.size()) {
      std::size_t end = rank.head + 1;
      while (all[end - 1].with_next && end < all.size()) ++end;
      while (rank.issued < end) issue(rank, all[rank.issued]);
      for (std::size_t i = rank.head; i < end; ++i) {
        if (waited_for(index, i)) return rank.head != before || rank.issued != begun;
      }
      rank.head = end;
    }
    return !std::exchange(rank.is_done, true);
  }

  void issue(Rank& rank, const Call& call) {
    const std::string_view group = group_of(rank, call);
    std::int64_t& count = call.kind == Call::Kind::send      ? rank.sent[{group, call.peer}]
                          : call.kind == Call::Kind::receive ? rank.received[{group, call.peer}]
                                                             : rank.begun[group];
    rank.numbers.push_back(count++);
    ++rank.issued;
  }

  // A rank that has not come to its part of a call that has begun; none: nothing holds it up.
  [[nodiscard]] std::optional<std::size_t> waited_for(std::size_t index, std::size_t position) const {
    const Rank& rank = ranks_[index];
    const Call& call = calls(rank)[position];
    const std::string_view group = group_of(rank, call);
    const std::int64_t number = rank.numbers[position];
    for (const Member& one : members_.at(group)) {
      const Rank& other = ranks_[one.rank];
      if (one.rank == index || other.is_done) continue;
      if (call.is_message() && one.member != call.peer) continue;
      if (call.kind == Call::Kind::send && call.bytes <= kBufferedBytes) continue;
      if (count_of(other, call, group, member_of(index, group)) <= number) return one.rank;
    }
    return std::nullopt;
  }

  // How many counterparts of such a call the other one has begun.
  static std::int64_t count_of(const Rank& other, const Call& call, std::string_view group, std::int64_t self) {
    const auto in = [](const auto& counts, const auto& key) {
      const auto found = counts.find(key);
      return found == counts.end() ? 0 : found->second;
    };
    if (call.kind == Call::Kind::send) return in(other.received, std::pair{group, self});
    if (call.kind == Call::Kind::receive) return in(other.sent, std::pair{group, self});
    return in(other.begun, group);
  }

  [[nodiscard]] std::int64_t member_of(std::size_t rank, std::string_view group) const {
    const auto& all = members_.at(group);
    return std::find_if(all.begin(), all.end(), [&](const Member& one) { return one.rank == rank; })->member;
  }

  // Each rank that waits waits for one that waits.
  [[nodiscard]] Disagreement cycle_from(std::size_t rank) const {
    std::vector<std::size_t> way;
    std::vector<Part> parts;
    while (std::find(way.begin(), way.end(), rank) == way.end()) {
      way.push_back(rank);
      std::size_t position = ranks_[rank].head;
      while (!waited_for(rank, position)) ++position;
      parts.push_back({ranks_[rank].statement, position});
      rank = *waited_for(rank, position);
    }
    const auto begin = std::find(way.begin(), way.end(), rank) - way.begin();
    parts.erase(parts.begin(), parts.begin() + begin);
    return {.what = "the ranks wait for each other for ever", .parts = std::move(parts)};
  }

  Statements statements_;
  std::vector<Rank> ranks_;
  std::map<std::string_view, std::vector<Member>> members_;
};

std::string words_of_length(const Call& call) {
  const auto& lengths = call.kind == Call::Kind::receive ? call.takes : call.gives;
  if (lengths.empty()) return "";
  const std::int64_t total =
      lengths.size() == 1 ? lengths.front() : std::accumulate(lengths.begin(), lengths.end(), 0L);
  return fmt::format(" of {} elements", total);
}

}  // namespace

std::optional<Disagreement> find_disagreement(Statements statements) {
  const Groups groups(statements);
  if (auto found = Comparison(statements, groups).run()) return found;
  return Run(statements, groups).run();
}

std::string words_of(const Statement& statement, const Call& call) {
  const std::string_view direction = call.kind == Call::Kind::send ? " to member " : " from member ";
  return fmt::format("{}: {} ({}){}{} by process group '{}'", statement.name, name_of(call.kind), call.agreed,
                     words_of_length(call), call.is_message() ? fmt::format("{}{}", direction, call.peer) : "",
                     statement.groups[call.group].group);
}

}  // namespace pianola::distributed
