#include <pianola/audit/cuda/stream_hazards.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace pianola::auditing::stream_order_test {
namespace {

/// A run in a line: "e1=0 1<e1 1 e2=1 0<e2" is: event 1 is recorded on the step's stream 0, stream 1 waits for it,
/// works, records event 2, for which the step's stream waits. "d" is the legacy default stream.
class Line {
 public:
  explicit Line(const std::string& text) {
    std::string word;
    for (const char c : text + " ") {
      if (c != ' ') {
        word += c;
        continue;
      }
      if (!word.empty()) add(word);
      word.clear();
    }
  }

  /// "unforked 1 at 3": the hazards, by their kind, their stream and the position of the use.
  [[nodiscard]] std::string hazards() const {
    std::string text;
    for (const StreamHazard& hazard : stream_hazards(uses_, stream('0'))) {
      static constexpr const char* kNames[] = {"unjoined", "unforked", "outside"};
      const auto handle = reinterpret_cast<std::uintptr_t>(hazard.stream);
      const std::string name = handle == 0 ? "d" : std::to_string(handle - 100);
      text += (text.empty() ? "" : ", ") + std::string(kNames[static_cast<int>(hazard.kind)]) + " " + name + " at " +
              std::to_string(hazard.use);
    }
    return text;
  }

 private:
  static CUstream stream(char name) {
    return name == 'd' ? nullptr : reinterpret_cast<CUstream>(static_cast<std::uintptr_t>(100 + (name - '0')));
  }
  static CUevent event(char name) { return reinterpret_cast<CUevent>(static_cast<std::uintptr_t>(name)); }

  void add(const std::string& word) {
    if (word.size() == 1) {
      uses_.push_back({.kind = StreamUse::Kind::work, .stream = stream(word[0])});
    } else if (word[0] == 'e') {
      uses_.push_back({.kind = StreamUse::Kind::record, .stream = stream(word[3]), .event = event(word[1])});
    } else {
      uses_.push_back({.kind = StreamUse::Kind::wait, .stream = stream(word[0]), .event = event(word[3])});
    }
  }

  std::vector<StreamUse> uses_;
};

struct Case {
  const char* name;
  const char* run;
  const char* hazards;
};

class StreamHazards : public ::testing::TestWithParam<Case> {};

TEST_P(StreamHazards, TellsWhatACaptureWouldTripOver) { EXPECT_EQ(Line(GetParam().run).hazards(), GetParam().hazards); }

INSTANTIATE_TEST_SUITE_P(Clean, StreamHazards,
                         ::testing::Values(Case{"Nothing", "", ""}, Case{"OneStream", "0 0 0", ""},
                                           Case{"ForkedAndJoined", "0 e1=0 1<e1 1 1 e2=1 0<e2 0", ""},
                                           Case{"ForkedWithoutWork", "0 e1=0 1<e1 0", ""},
                                           Case{"TwoSides", "e1=0 1<e1 2<e1 1 2 e2=1 e3=2 0<e2 0<e3", ""},
                                           Case{"JoinedOverAnother", "e1=0 1<e1 1 e2=1 2<e2 2 e3=2 0<e3", ""},
                                           Case{"ForkedOverAnother", "e1=0 1<e1 e2=1 2<e2 2 e3=2 0<e3", ""},
                                           Case{"UsedTwice", "e1=0 1<e1 1 e2=1 0<e2 0 1 e2=1 0<e2", ""},
                                           Case{"AnEventOfAnAllocator", "e1=0 1<e1 1 e2=1 0<e2 e3=1 e4=0 e5=2", ""},
                                           Case{"ASideThatDoesNothing", "2<e1 e3=2", ""},
                                           Case{"OnTheDefaultStream", "d ed=d", ""},
                                           Case{"JoinedFromTheDefaultStream", "d e1=d 0<e1", ""}),
                         [](const auto& tested) { return std::string(tested.param.name); });

INSTANTIATE_TEST_SUITE_P(
    Hazardous, StreamHazards,
    ::testing::Values(Case{"Unjoined", "e1=0 1<e1 1 1 0", "unjoined 1 at 3"},
                      Case{"WorkAfterTheJoin", "e1=0 1<e1 1 e2=1 0<e2 1", "unjoined 1 at 5"},
                      Case{"WorkAfterTheRecord", "e1=0 1<e1 1 e2=1 1 0<e2", "unjoined 1 at 4"},
                      Case{"WaitedForByAnotherSideOnly", "e1=0 1<e1 1 e2=1 2<e2", "unjoined 1 at 2"},
                      Case{"Unforked", "0 1 1 e2=1 0<e2", "unforked 1 at 1"},
                      Case{"ForkedTooLate", "1 e1=0 1<e1 1 e2=1 0<e2", "unforked 1 at 0"},
                      Case{"ForkedFromOneThatIsNoPart", "e1=1 2<e1 2 e3=2 0<e3", "unforked 2 at 2"},
                      Case{"Outside", "0 0<e9 0", "outside 0 at 1"},
                      Case{"OutsideForASide", "e1=0 1<e1 1<e9 1 e2=1 0<e2", "outside 1 at 2"},
                      Case{"RecordedOnTheDefaultStream", "e1=d 0<e1", "outside 0 at 1"},
                      Case{"RecordedOnASideThatIsNoPart", "e1=1 0<e1", "outside 0 at 1"},
                      Case{"RecordedOnceMoreOutside", "e1=0 e1=2 0<e1", "outside 0 at 2"},
                      Case{"Several", "1 0<e9 e1=0 2<e1 2", "unforked 1 at 0, outside 0 at 1, unjoined 2 at 4"}),
    [](const auto& tested) { return std::string(tested.param.name); });

// A run whose own stream is the legacy one, as without a side stream.
TEST(StreamHazardsOfTheDefaultStream, IsAsOfAnyOther) {
  const auto side = reinterpret_cast<CUstream>(std::uintptr_t{7});
  const auto event = reinterpret_cast<CUevent>(std::uintptr_t{1});
  const std::vector<StreamUse> uses = {{.kind = StreamUse::Kind::work, .stream = nullptr},
                                       {.kind = StreamUse::Kind::record, .stream = nullptr, .event = event},
                                       {.kind = StreamUse::Kind::wait, .stream = side, .event = event},
                                       {.kind = StreamUse::Kind::work, .stream = side}};
  const auto hazards = stream_hazards(uses, nullptr);
  ASSERT_EQ(hazards.size(), 1U);
  EXPECT_EQ(hazards[0].kind, StreamHazard::Kind::unjoined);
  EXPECT_EQ(hazards[0].use, 3U);
}

}  // namespace
}  // namespace pianola::auditing::stream_order_test
