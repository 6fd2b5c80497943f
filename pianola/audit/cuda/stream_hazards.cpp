#include <pianola/audit/cuda/stream_hazards.hpp>

#include <algorithm>
#include <map>

namespace pianola::auditing {
namespace {

// How much of each stream's work, as a count, has to be done first.
using VectorClock = std::map<CUstream, std::size_t>;

void join(VectorClock& clock, const VectorClock& other) {
  for (const auto& [stream, count] : other) clock[stream] = std::max(clock[stream], count);
}

struct Stream {
  bool part = false;      // of the run, as a capture would have it
  bool blamed = false;    // for work while it was no part
  std::size_t works = 0;  // while it was
  std::size_t last = 0;   // the use that was the last of them
  VectorClock behind;     // what its next work waits for
};

// An event as it was recorded last.
struct Event {
  bool part;
  bool blamed;
  VectorClock behind;
};

class Order {
 public:
  explicit Order(CUstream own) : own_(own) { streams_[own].part = true; }

  void work(std::size_t use, CUstream on) {
    if (on == own_) return;
    Stream& stream = streams_[on];
    if (!stream.part) {
      // On the legacy stream another rule has blamed it already; blaming the join that follows would be once more.
      if (!stream.blamed && on != nullptr) add(StreamHazard::Kind::unforked, use, on);
      stream.blamed = true;
      return;
    }
    stream.behind[on] = ++stream.works;
    stream.last = use;
  }

  void record(CUevent event, CUstream on) {
    const Stream& stream = streams_[on];
    events_[event] = {.part = stream.part, .blamed = stream.blamed, .behind = stream.behind};
  }

  void wait(std::size_t use, CUstream waiting, CUevent event) {
    Stream& stream = streams_[waiting];
    const auto known = events_.find(event);
    if (known != events_.end() && known->second.part) {
      stream.part = true;
      join(stream.behind, known->second.behind);
      return;
    }
    const bool blamed = known != events_.end() && known->second.blamed;
    if (stream.part && !blamed) add(StreamHazard::Kind::outside, use, waiting);
  }

  std::vector<StreamHazard> finish() {
    const VectorClock& joined = streams_[own_].behind;
    for (const auto& [handle, stream] : streams_) {
      if (stream.works == 0) continue;
      const auto known = joined.find(handle);
      if (known == joined.end() || known->second < stream.works) {
        add(StreamHazard::Kind::unjoined, stream.last, handle);
      }
    }
    std::stable_sort(hazards_.begin(), hazards_.end(),
                     [](const StreamHazard& a, const StreamHazard& b) { return a.use < b.use; });
    return std::move(hazards_);
  }

 private:
  void add(StreamHazard::Kind kind, std::size_t use, CUstream stream) {
    hazards_.push_back({.kind = kind, .use = use, .stream = stream});
  }

  CUstream own_;
  std::map<CUstream, Stream> streams_;
  std::map<CUevent, Event> events_;
  std::vector<StreamHazard> hazards_;
};

}  // namespace

std::vector<StreamHazard> stream_hazards(std::span<const StreamUse> uses, CUstream own) {
  Order order(own);
  for (std::size_t i = 0; i < uses.size(); ++i) {
    switch (uses[i].kind) {
      case StreamUse::Kind::work:
        order.work(i, uses[i].stream);
        break;
      case StreamUse::Kind::record:
        order.record(uses[i].event, uses[i].stream);
        break;
      case StreamUse::Kind::wait:
        order.wait(i, uses[i].stream, uses[i].event);
        break;
    }
  }
  return order.finish();
}

}  // namespace pianola::auditing
