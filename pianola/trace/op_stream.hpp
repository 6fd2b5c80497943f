#pragma once
#include <pianola/core/error.hpp>
#include <pianola/trace/odd_work.hpp>
#include <pianola/trace/op_observer.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

namespace pianola::trace {

class OpStreamState;

/// A node of autograd that a backward pass ran, and whose saved tensors it let go of (no retain_graph).
struct ReleasedNode {
  std::uint64_t thread;   ///< That made it; see torch::autograd::Node::thread_id().
  std::int64_t sequence;  ///< Unique among those of its thread.
};

/// How long a collective of the CPU that is observed is waited for; see Note [Collectives that are observed].
enum class ForRanks : std::uint8_t { a_while, as_long_as_it_takes };

/// While it lives, shows every operation that this thread runs, and that autograd's threads run for it, to `observers`,
/// in their order. Operations of other threads are not seen: intra-op workers repeat parts of an operation, and threads
/// of the user's own are not part of the step.
///
/// Operations that are not plain (Note [What is plain]) it keeps from the observers, and remembers the first. It also keeps those
/// that are the host's own (Note [Calls of the host]).
///
/// Must be destroyed on the thread that made it. Streams nest: the inner one's operations reach both.
class OpStream {
 public:
  explicit OpStream(std::vector<OpObserver*> observers, ForRanks patience = ForRanks::a_while);
  OpStream(const OpStream&) = delete;
  OpStream& operator=(const OpStream&) = delete;
  ~OpStream();

  /// Why the records of its observers are not whole: what one of them threw, and while which operation; nothing where all
  /// went well. Ask it at the end, before anybody trusts them.
  [[nodiscard]] std::optional<Diagnosis> failure() const;
  /// @throws CaptureError  There is a failure(); OutOfMemoryError, where that is why.
  void check() const;

  /// Whether no other one was begun inside of it, on this thread, that is open. Else it may not be destroyed yet.
  [[nodiscard]] bool is_innermost() const noexcept;
  /// From any thread: the observers are shown nothing more, and may end before the stream does.
  void disarm() noexcept;

  /// The first work that was not plain; nothing while there is none.
  [[nodiscard]] std::optional<OddWork> odd_work() const;
  /// The first work with other ranks that the graph of a whole step may hold, that of DistributedDataParallel before others, which
  /// asks for more warm-up; nothing while there is none.
  [[nodiscard]] std::optional<OddWork> communication() const;

  /// In the order in which they began.
  [[nodiscard]] std::vector<ReleasedNode> released_nodes() const;

  /// Whether a stream sees the operations of this thread.
  [[nodiscard]] static bool watches_this_thread() noexcept;
  /// The thread whose step this thread works for: the one that made the stream which sees its operations; without one, itself.
  [[nodiscard]] static std::thread::id thread_of_step() noexcept;

 private:
  std::shared_ptr<OpStreamState> state_;
};

}  // namespace pianola::trace
