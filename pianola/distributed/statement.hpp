#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pianola::distributed {

/// One call by which a rank communicates.
struct Call {
  /// Calls of one kind are each other's counterparts, whatever function of torch was called.
  enum class Kind : std::uint8_t {
    all_reduce,
    all_gather,
    reduce_scatter,
    all_to_all,
    broadcast,
    reduce,
    gather,
    scatter,
    barrier,
    send,
    receive
  };

  Kind kind = Kind::all_reduce;
  std::uint32_t group = 0;  ///< Index in Statement::groups.
  std::string agreed = {};  ///< What all members give alike: "Float, sum", "Long, root 2".
  /// Elements that go to, or come from, each member: none where the call does not tell, one number where they are all alike,
  /// else one per member of the group. Of a message: one number.
  std::vector<std::int64_t> gives = {}, takes = {};
  std::int64_t bytes = 0;   ///< Of what it gives.
  std::int64_t peer = -1;   ///< Of a message: its other end, as a member of the group.
  bool with_next = false;   ///< Issued as one with the call behind it, in a group of messages.
  std::uint32_t place = 0;  ///< Which of the step's collectives it is, from 0.

  [[nodiscard]] bool is_message() const noexcept { return kind == Kind::send || kind == Kind::receive; }
};

/// "all_reduce", "send".
[[nodiscard]] std::string_view name_of(Call::Kind kind);

/// A process group as one of its members sees it.
struct Membership {
  std::string group;  ///< c10d::ProcessGroup::getGroupName().
  std::int64_t member = 0;
  std::int64_t size = 1;
  /// When the graph comes: how many collectives the group had run, and how many graphs were captured at that point; empty: nobody
  /// knows. Equal for members whose graphs run together.
  std::string moment;

  friend bool operator==(const Membership&, const Membership&) = default;
};

/// What the graph of one process communicates, in the order in which it does: each call waits for the one before it.
struct Statement {
  std::string process;  ///< No other has it.
  std::string name;     ///< For messages: "rank 3".
  std::vector<Membership> groups = {};
  std::vector<Call> calls = {};

  [[nodiscard]] std::string to_text() const;
  /// @return  None: it is not one, or of another version of Pianola.
  [[nodiscard]] static std::optional<Statement> from_text(std::string_view text);
};

}  // namespace pianola::distributed
