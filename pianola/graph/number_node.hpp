#pragma once
#include <pianola/trace/number_span.hpp>
#include <pianola/trace/op_stream.hpp>

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace pianola::graph {

/// What a Number is: one that has a name, a constant, or a calculation of others.
class NumberNode {
 public:
  NumberNode() = default;
  NumberNode(const NumberNode&) = delete;
  NumberNode& operator=(const NumberNode&) = delete;
  virtual ~NumberNode() = default;

  [[nodiscard]] virtual double value() const = 0;
  /// Equal texts are equal calculations: "(1 - (rate * 0.01))".
  [[nodiscard]] virtual std::string text() const = 0;
  /// Named ones that it is calculated of.
  virtual void collect(std::set<const class NamedNumber*>& named) const = 0;
};

using NumberNodeRef = std::shared_ptr<const NumberNode>;

class NamedNumber final : public NumberNode {
 public:
  NamedNumber(std::string name, double value, std::shared_ptr<bool> changed)
      : name_(std::move(name)), value_(value), changed_(std::move(changed)) {}

  [[nodiscard]] double value() const override { return value_; }
  [[nodiscard]] std::string text() const override { return name_; }
  void collect(std::set<const NamedNumber*>& named) const override { named.insert(this); }

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// @throws UsageError  See Number::set.
  void set(double value) const;
  /// For a trial: without a look at what it may be.
  void put(double value) const noexcept { value_ = value; }
  /// Whether a captured step asked for its value.
  void fix(bool is_fixed) const noexcept { is_fixed_ = is_fixed; }

 private:
  std::string name_;
  mutable double value_;
  mutable bool is_fixed_ = false;
  std::shared_ptr<bool> changed_;  // since the last replay, any number of the graph
};

// Note [Whose argument a number is]
// A Number that becomes an argument does so before its operation begins, but others may run in between: in
// f(a.div_(one), other) the second may be made first. So it may be an argument of each of the next operations, and the values
// that it has in several calls tell of which.

/// While it lives, numbers that are given to operations on this thread are noted for those that begin afterwards
/// (trace::NumberSpan), and so are those that are asked for their value.
class NumberNotes final : public trace::OpObserver {
 public:
  NumberNotes();
  NumberNotes(const NumberNotes&) = delete;
  NumberNotes& operator=(const NumberNotes&) = delete;
  ~NumberNotes() override;

  /// @return  nullptr: none is open on this thread.
  [[nodiscard]] static NumberNotes* current() noexcept;

  [[nodiscard]] trace::OpInterest interest() const override { return {.outputs = false}; }
  void on_op_begin(const trace::OpSpan& op) override;

  void note_given(const NumberNodeRef& node);
  void note_asked(const NumberNode& node) { node.collect(asked_); }

  /// All that were given, by the numbers that NumberSpan has.
  [[nodiscard]] const std::vector<NumberNodeRef>& given() const noexcept { return given_; }
  [[nodiscard]] const std::set<const NamedNumber*>& asked() const noexcept { return asked_; }

 private:
  std::vector<NumberNodeRef> given_;
  std::map<std::string, int> known_;  // by text
  std::set<const NamedNumber*> asked_;
  void open_span();

  struct Pending {
    int number;
    std::size_t operation;  // that began last when it was given
  };
  std::vector<Pending> pending_;
  std::size_t operations_ = 0;
  std::thread::id thread_ = std::this_thread::get_id();
  std::optional<trace::NumberSpan> span_;
  NumberNotes* outer_;
};

/// What torch's functions and derivatives may make of a number before they give it to an operation: -x, 1 - x, 1 / x, ...
[[nodiscard]] std::vector<NumberNodeRef> forms_of(const NumberNodeRef& node);

}  // namespace pianola::graph
