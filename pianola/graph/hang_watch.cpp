#include <pianola/graph/hang_watch.hpp>

#include <pianola/core/error.hpp>
#include <pianola/trace/op_info.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <string_view>
#include <utility>

namespace pianola::graph {
namespace {

// Of the one that asks, and of each one that answers.
constexpr const char* kQuestion = "pianola/who_waits";
std::string answer_key(int rank) { return fmt::format("pianola/who_waits/{}", rank); }

std::vector<std::uint8_t> to_bytes(std::string_view text) { return {text.begin(), text.end()}; }

double seconds(std::chrono::steady_clock::duration time) { return std::chrono::duration<double>(time).count(); }

bool acts_by_environment() {
  const char* const value = std::getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING");
  return value == nullptr || std::string_view(value) != "0";
}

}  // namespace

std::string words_of_collectives(const OpTrace& trace) {
  std::map<std::string, std::size_t> counts;
  std::string first;
  for (const OpRecord& op : trace.ops()) {
    if (!op.info->collective) continue;
    if (counts.empty()) first = trace.place(op);
    ++counts[trace.name(op)];
  }
  std::vector<std::string> words;
  for (const auto& [name, count] : counts) words.push_back(fmt::format("{} x {}", count, name));
  return fmt::format("{}{}{}", fmt::join(words, ", "), first.empty() ? "" : ", the first at ", first);
}

HangWatch::HangWatch(Options options) : options_(std::move(options)) {
  if (!options_.say) {
    options_.say = [](const std::string& text) {
      std::fputs(text.c_str(), stderr);
      std::fflush(stderr);
    };
  }
  if (!options_.end_process) options_.end_process = [] { std::_Exit(1); };
}

HangWatch::~HangWatch() { stop(); }

// Never destroyed: graphs may end after static objects do.
HangWatch& HangWatch::of_this_process() {
  static HangWatch* const watch = [] {
    auto* const made = new HangWatch({.acts = acts_by_environment(), .say = {}, .end_process = {}});
    std::atexit([] { of_this_process().stop(); });
    return made;
  }();
  return *watch;
}

void HangWatch::stop() noexcept {
  if (!process_.is_this_process()) return;  // its thread has stayed in the parent
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  wakes_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void HangWatch::launched(const std::shared_ptr<const WatchedGraph>& graph, std::shared_ptr<ReplayEnd> end) {
  const std::lock_guard lock(mutex_);
  open_.push_back({.graph = graph, .end = std::move(end), .number = ++launched_, .begin = Clock::now()});
  for (const WatchedGroup& group : graph->groups) {
    const auto is_it = [&](const WatchedGroup& known) { return known.store == group.store; };
    if (group.store && std::none_of(groups_.begin(), groups_.end(), is_it)) groups_.push_back(group);
  }
  if (!thread_.joinable() && !stops_) thread_ = std::thread([this] { run(); });
}

void HangWatch::forget(std::string_view name) {
  const std::lock_guard lock(mutex_);
  const auto is_it = [&](const WatchedGroup& group) { return group.name == name; };
  std::erase_if(groups_, is_it);
  if (failed_ == nullptr || std::none_of(failed_->groups.begin(), failed_->groups.end(), is_it)) return;
  failed_.reset();
  was_raised_ = true;  // somebody has noticed
  has_failed_ = false;
}

void HangWatch::raise() {
  const std::lock_guard lock(mutex_);
  was_raised_ = true;
  throw CommunicationError(
      {.what = failure_,
       .fix = "look at the rank that did something else, or has ended. All that was communicated since is "
              "undefined: start all ranks again from a checkpoint"});
}

void HangWatch::run() noexcept {
  while (sleep(options_.interval)) {
    try {
      look();
      answer();
    } catch (const std::exception& error) {  // a store whose server has gone: nobody can be asked
      const std::lock_guard lock(mutex_);
      groups_.clear();
    }
  }
}

// False where it has to stop.
bool HangWatch::sleep(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return !wakes_.wait_for(lock, time, [this] { return stops_; });
}

void HangWatch::look() {
  std::unique_lock lock(mutex_);
  while (!open_.empty() && open_.front().end->has_come()) {
    open_.pop_front();
    ++ended_;
    last_end_ = Clock::now();
  }
  if (open_.empty() || has_failed_) return;
  const Replay first = open_.front();  // the others wait behind it
  if (Clock::now() - std::max(first.begin, last_end_) < first.graph->timeout) return;
  lock.unlock();
  tell(first);
}

void HangWatch::tell(const Replay& replay) {
  const int rank = replay.graph->groups.empty() ? 0 : replay.graph->groups.front().rank;
  const std::string mine = words_of(replay, rank);
  std::string text = mine;
  for (const WatchedGroup& group : replay.graph->groups) {
    if (group.store) text += ask_others(group, mine);
  }
  if (replay.end->has_come()) return;  // while the others were asked
  {
    const std::lock_guard lock(mutex_);
    failure_ = text;
    failed_ = replay.graph;
    was_raised_ = false;
    has_failed_ = true;
  }
  options_.say("pianola: " + text + "\n");
  if (options_.acts) abort(*replay.graph);
}

std::string HangWatch::words_of(const Replay& replay, int rank) const {
  return fmt::format(
      "rank {} waits in a replay (number {} of this process) of a graph that holds {}; it has not ended in {:.1f} s",
      rank, replay.number, replay.graph->holds, seconds(Clock::now() - replay.begin));
}

std::string HangWatch::idle_words(int rank) const {
  return fmt::format("rank {} waits in no replay: the last of {} ended {:.1f} s ago", rank, ended_,
                     seconds(Clock::now() - last_end_));
}

// What each of them does; those that have ended say nothing.
std::string HangWatch::ask_others(const WatchedGroup& group, const std::string& mine) {
  std::string text;
  try {
    group.store->set(kQuestion, to_bytes(std::to_string(group.rank)));
    group.store->set(answer_key(group.rank), to_bytes(mine));
    const auto end = Clock::now() + options_.patience;
    for (int rank = 0; rank < group.size; ++rank) {
      if (rank == group.rank) continue;
      while (!group.store->check({answer_key(rank)}) && Clock::now() < end) {
        if (!sleep(std::min(options_.interval, std::chrono::milliseconds(50)))) break;
      }
      if (group.store->check({answer_key(rank)})) {
        const std::vector<std::uint8_t> answer = group.store->get(answer_key(rank));
        text += "\n  " + std::string(answer.begin(), answer.end());
      } else {
        text += fmt::format("\n  rank {} says nothing: it has ended, or has replayed nothing yet", rank);
      }
    }
  } catch (const std::exception& error) {
    text += fmt::format("\n  the other ranks could not be asked ({})", std::string_view(error.what()).substr(0, 200));
  }
  return text;
}

// A rank that does not wait itself is asked what it does.
void HangWatch::answer() {
  std::unique_lock lock(mutex_);
  if (has_answered_) return;
  const std::vector<WatchedGroup> groups = groups_;
  lock.unlock();
  for (const WatchedGroup& group : groups) {
    if (!group.store->check({kQuestion})) continue;
    lock.lock();
    has_answered_ = true;
    const std::string words = open_.empty() ? idle_words(group.rank) : words_of(open_.front(), group.rank);
    lock.unlock();
    group.store->set(answer_key(group.rank), to_bytes(words));
  }
}

// An abort waits for graphs that hold collectives: it has a thread of its own, which the process does not wait for.
void HangWatch::abort(const WatchedGraph& graph) {
  for (const WatchedGroup& group : graph.groups) {
    if (!group.abort) continue;
    std::thread([abort = group.abort] {
      try {
        abort();
      } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the process is ended then
      }
    }).detach();
  }
  const auto end = Clock::now() + options_.grace;
  const auto is_over = [this] {
    const std::lock_guard lock(mutex_);
    return was_raised_;
  };
  while (Clock::now() < end) {
    if (is_over() || !sleep(options_.interval)) return;
  }
  options_.say(fmt::format("pianola: nothing has replayed since, in {:.0f} s: this process is ended\n",
                           seconds(options_.grace)));
  options_.end_process();
}

}  // namespace pianola::graph
