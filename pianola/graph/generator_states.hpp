#pragma once
#include <pianola/graph/foreign_draws.hpp>
#include <pianola/trace/op_stream.hpp>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace pianola::graph {

/// Where a generator stands: equal places give equal draws. Host work only: the states of CUDA generators live there too.
struct GeneratorPlace {
  std::uint64_t seed = 0, position = 0;
  bool operator==(const GeneratorPlace&) const = default;
  /// Call it with the generator's lock.
  static GeneratorPlace of(const at::Generator& generator);
};

/// Who moved a generator: the operations that are shown to it, or others meanwhile. See Note [Draws of other threads].
class GeneratorUse {
 public:
  GeneratorUse(const at::Generator& generator, ForeignDraws& others);

  /// Around an operation of one's own that may draw.
  void begin();
  void end();
  /// Whether one's own work has moved it.
  [[nodiscard]] bool moved_by_own() const noexcept { return moved_by_own_; }
  /// Whether the last operation moved it.
  [[nodiscard]] bool moved_by_last() const noexcept { return moved_by_last_; }
  /// Whether it was moved since one's own last operation, and not by others: one's own code set it, or drew unseen.
  [[nodiscard]] bool is_moved_between() const;

  /// Runs `put` with the generator's lock where one's own work has moved it, and nobody else; where `put` leaves it is its
  /// place from now on.
  /// @return  False: both have moved it, so that it stays.
  bool put_back(const std::function<void(at::Generator&)>& put);

 private:
  struct Now {
    GeneratorPlace place;
    ForeignDraws::Count count;
  };
  [[nodiscard]] Now now() const;
  [[nodiscard]] Now now_under_lock() const;
  void look(const Now& here);

  at::Generator generator_;
  ForeignDraws* others_;
  std::size_t number_;
  Now left_;  // by one's own last work
  bool moved_by_others_ = false;
  bool moved_by_own_ = false;
  bool moved_by_last_ = false;
};

/// Remembers where generators stand, and puts them back.
/// As an observer it also remembers those that an operation is about to draw from although nobody named them: the
/// capture refuses them later, but an eager run moves them before.
class GeneratorStates final : public trace::OpObserver {
 public:
  void remember(const std::vector<at::Generator>& generators);
  /// As remembered, whoever moved them.
  void restore() const;

  /// From here on it is noted who moves the generators; construct it in the scope of the capture's threads.
  void tell_others_apart() { others_ = std::make_unique<ForeignDraws>(); }
  /// As remembered, except those that other threads have moved: these stay, and are told.
  /// @return  Their devices.
  std::set<std::string> put_back();

  [[nodiscard]] trace::OpInterest interest() const override { return {.outputs = false}; }
  void on_op_begin(const trace::OpSpan& op) override;
  void on_op_end(const trace::OpSpan& op) override;

 private:
  struct Remembered {
    at::Generator generator;
    at::Tensor state;
    std::uint64_t seed;
    std::optional<GeneratorUse> use;     // where others are told apart
    std::vector<std::uint64_t> drawing;  // operations that run and may draw from it
  };
  void remember(at::Generator generator);

  std::unique_ptr<ForeignDraws> others_;
  std::vector<Remembered> states_;
};

}  // namespace pianola::graph
