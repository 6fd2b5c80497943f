#include <pianola/distributed/agreement.hpp>

#include <pianola/distributed/order_proof.hpp>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <thread>
#include <utility>

namespace pianola::distributed {
namespace {

constexpr std::size_t kMostKeys = 32;  // of this process in a store, for each group

std::string key_of(const Membership& one, std::int64_t member) {
  return fmt::format("pianola/graphs/{}/{}/{}", one.group, one.moment, member);
}

std::string key_of_line(const std::string& process, const Call& call, const Membership& group) {
  return fmt::format("pianola/lines/{}/{}/{}/{}", group.group, group.moment, process, call.place);
}

std::vector<std::uint8_t> bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

bool is_shared(const Membership& one) { return one.size > 1 && !one.moment.empty(); }

}  // namespace

c10::intrusive_ptr<c10d::Store> common_store(const std::vector<c10::intrusive_ptr<c10d::ProcessGroup>>& groups) {
  try {
    const auto all = c10d::resolve_process_group("0");  // as torch.distributed calls it
    const bool is_of_this_world = all->getSize() > 1;
    if (is_of_this_world && all->getStore()) return all->getStore();
  } catch (const c10::Error&) {  // NOLINT(bugprone-empty-catch): there is none
  }
  const auto largest = std::max_element(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
    return std::pair(a->getSize(), b->getGroupName()) < std::pair(b->getSize(), a->getGroupName());
  });
  return largest == groups.end() ? nullptr : (*largest)->getStore();
}

// Never destroyed, as graphs may end after static objects do.
Agreement& Agreement::of_this_process() {
  static auto* const agreement = new Agreement({});
  return *agreement;
}

// Of two graphs that are captured with nothing run in between, the second is another moment.
void Agreement::count_captures(Statement& statement) {
  const std::lock_guard lock(mutex_);
  for (Membership& one : statement.groups) {
    if (!is_shared(one)) continue;
    const std::int64_t number = captures_[one.group + '/' + one.moment]++;
    one.moment += fmt::format(".{}", number);
  }
}

std::optional<Diagnosis> Agreement::find_objection(Statement statement, const c10::intrusive_ptr<c10d::Store>& store,
                                                   const std::function<std::string(const Call&)>& place_of) {
  count_captures(statement);
  if (std::none_of(statement.groups.begin(), statement.groups.end(), is_shared)) return std::nullopt;
  const std::string own = statement.to_text();
  for (const Membership& one : statement.groups) {
    if (is_shared(one)) state(one, key_of(one, one.member), own, store);
  }
  const std::vector<Statement> all = read_all(statement, *store);
  const auto found = find_disagreement(all);
  if (!found) return std::nullopt;

  for (const Disagreement::Part& part : found->parts) {
    const Statement& of = all[part.statement];
    const Call& call = of.calls[part.call];
    if (of.process != statement.process) continue;
    store->set(key_of_line(of.process, call, of.groups[call.group]), bytes_of(place_of(call)));
  }
  const auto end = Clock::now() + options_.patience;
  std::string text = found->what + ":";
  for (const Disagreement::Part& part : found->parts) {
    const Statement& of = all[part.statement];
    const Call& call = of.calls[part.call];
    const auto place = wait_for(*store, key_of_line(of.process, call, of.groups[call.group]), end);
    text += fmt::format("{} {}", &part == &found->parts.front() ? "" : ";", words_of(of, call));
    if (place && !place->empty()) text += " at " + *place;
  }
  return Diagnosis{.what = std::move(text),
                   .fix = "let all ranks communicate alike, in one order over all process groups",
                   .rule = "PG1107"};
}

void Agreement::state(const Membership& one, const std::string& key, const std::string& text,
                      const c10::intrusive_ptr<c10d::Store>& store) {
  store->set(key, bytes_of(text));
  const std::lock_guard lock(mutex_);
  Stated& stated = stated_[one.group];
  stated.store = store;
  stated.keys.push_back(key);
  if (stated.keys.size() <= kMostKeys) return;
  store->deleteKey(stated.keys.front());
  stated.keys.pop_front();
}

std::vector<Statement> Agreement::read_all(const Statement& own, c10d::Store& store) {
  std::vector<Statement> all = {own};
  const auto end = end_of_patience(own);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::vector<Membership> groups = all[i].groups;
    for (const Membership& one : groups) {
      for (std::int64_t member = 0; is_shared(one) && member < one.size; ++member) {
        const auto has_it = [&](const Statement& known) {
          return std::any_of(known.groups.begin(), known.groups.end(), [&](const Membership& other) {
            return other.group == one.group && other.member == member;
          });
        };
        if (all.size() == options_.most_processes || std::any_of(all.begin(), all.end(), has_it)) continue;
        const auto answer = wait_for(store, key_of(one, member), end);
        if (answer) {
          if (auto statement = Statement::from_text(*answer)) all.push_back(*std::move(statement));
        } else {
          const std::lock_guard lock(mutex_);
          silent_.insert(one.group);
        }
      }
    }
  }
  std::sort(all.begin(), all.end(), [](const Statement& a, const Statement& b) { return a.process < b.process; });
  return all;
}

Agreement::Clock::time_point Agreement::end_of_patience(const Statement& statement) {
  const std::lock_guard lock(mutex_);
  const bool knows_silence = std::any_of(statement.groups.begin(), statement.groups.end(),
                                         [&](const Membership& one) { return silent_.contains(one.group); });
  return Clock::now() + (knows_silence ? options_.again : options_.patience);
}

std::optional<std::string> Agreement::wait_for(c10d::Store& store, const std::string& key,
                                               Clock::time_point end) const {
  while (!store.check({key})) {
    if (Clock::now() >= end) return std::nullopt;
    std::this_thread::sleep_for(options_.interval);
  }
  const std::vector<std::uint8_t> answer = store.get(key);
  return std::string(answer.begin(), answer.end());
}

void Agreement::forget(std::string_view group) {
  const std::lock_guard lock(mutex_);
  const std::string prefix = std::string(group) + '/';
  std::erase_if(captures_, [&](const auto& one) { return one.first.starts_with(prefix); });
  if (const auto known = silent_.find(group); known != silent_.end()) silent_.erase(known);
  const auto stated = stated_.find(group);
  if (stated == stated_.end()) return;
  try {
    for (const std::string& key : stated->second.keys) stated->second.store->deleteKey(key);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the store has ended before
  }
  stated_.erase(stated);
}

}  // namespace pianola::distributed
