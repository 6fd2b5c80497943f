#include <pianola/graph/number.hpp>

#include <pianola/core/error.hpp>
#include <pianola/graph/number_node.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace pianola {
namespace graph {
namespace {

thread_local NumberNotes* open_notes = nullptr;

// That may begin between a number and the one whose argument it is.
constexpr std::size_t kOperations = 16;

class ConstantNode final : public NumberNode {
 public:
  explicit ConstantNode(double value) : value_(value) {}
  [[nodiscard]] double value() const override { return value_; }
  [[nodiscard]] std::string text() const override { return fmt::format("{}", value_); }
  void collect(std::set<const NamedNumber*>& /*named*/) const override {}

 private:
  double value_;
};

class UnaryNode final : public NumberNode {
 public:
  using Function = double (*)(double);
  UnaryNode(const char* format, Function function, NumberNodeRef of)
      : format_(format), function_(function), of_(std::move(of)) {}
  [[nodiscard]] double value() const override { return function_(of_->value()); }
  [[nodiscard]] std::string text() const override { return fmt::format(fmt::runtime(format_), of_->text()); }
  void collect(std::set<const NamedNumber*>& named) const override { of_->collect(named); }

 private:
  const char* format_;
  Function function_;
  NumberNodeRef of_;
};

class BinaryNode final : public NumberNode {
 public:
  using Function = double (*)(double, double);
  BinaryNode(const char* format, Function function, NumberNodeRef left, NumberNodeRef right)
      : format_(format), function_(function), left_(std::move(left)), right_(std::move(right)) {}
  [[nodiscard]] double value() const override { return function_(left_->value(), right_->value()); }
  [[nodiscard]] std::string text() const override {
    return fmt::format(fmt::runtime(format_), left_->text(), right_->text());
  }
  void collect(std::set<const NamedNumber*>& named) const override {
    left_->collect(named);
    right_->collect(named);
  }

 private:
  const char* format_;
  Function function_;
  NumberNodeRef left_, right_;
};

NumberNodeRef unary(const char* format, UnaryNode::Function function, const NumberNodeRef& of) {
  return std::make_shared<UnaryNode>(format, function, of);
}

NumberNodeRef binary(const char* format, BinaryNode::Function function, const NumberNodeRef& left,
                     const NumberNodeRef& right) {
  return std::make_shared<BinaryNode>(format, function, left, right);
}

}  // namespace

void NamedNumber::set(double value) const {
  if (!std::isfinite(value)) {
    throw UsageError({.what = fmt::format("the number '{}' was set to {}, which is not finite", name_, value),
                      .fix = "run such a step eagerly"});
  }
  if (value == value_ && std::signbit(value) == std::signbit(value_)) return;
  if (is_fixed_) {
    throw UsageError({.what = fmt::format("the number '{}' cannot be another one than {}: the captured step asked for "
                                          "its value, and may have done anything with it",
                                          name_, value_),
                      .fix = "calculate with pianola::Number, and give that to the operations; or capture again"});
  }
  value_ = value;
  *changed_ = true;
}

NumberNotes::NumberNotes() : outer_(std::exchange(open_notes, this)) {}
NumberNotes::~NumberNotes() { open_notes = outer_; }
NumberNotes* NumberNotes::current() noexcept { return open_notes; }

void NumberNotes::note_given(const NumberNodeRef& node) {
  const auto [known, is_new] = known_.emplace(node->text(), static_cast<int>(given_.size()));
  if (is_new) given_.push_back(node);
  pending_.push_back({.number = known->second, .operation = operations_});
  open_span();
}

void NumberNotes::on_op_begin(const trace::OpSpan& /*op*/) {
  if (std::this_thread::get_id() != thread_) return;  // autograd's
  ++operations_;
  const auto is_over = [&](const Pending& one) { return operations_ - one.operation > kOperations; };
  if (std::erase_if(pending_, is_over) != 0) open_span();
}

void NumberNotes::open_span() {
  std::vector<int> numbers;
  for (const Pending& one : pending_) numbers.push_back(one.number);
  span_.reset();
  if (!numbers.empty()) span_.emplace(std::move(numbers));
}

std::vector<NumberNodeRef> forms_of(const NumberNodeRef& node) {
  return {unary(
              "(-{})", [](double x) { return -x; }, node),
          unary(
              "(1 - {})", [](double x) { return 1 - x; }, node),
          unary(
              "(1 / {})", [](double x) { return 1 / x; }, node),
          unary(
              "({} - 1)", [](double x) { return x - 1; }, node),
          unary(
              "(1 / (1 - {}))", [](double x) { return 1 / (1 - x); }, node),
          unary(
              "sqrt({})", [](double x) { return std::sqrt(x); }, node),
          unary(
              "single({})", [](double x) { return static_cast<double>(static_cast<float>(x)); }, node)};
}

}  // namespace graph

Number::Number(Constant constant) : node_(std::make_shared<graph::ConstantNode>(constant.value)) {}

Number::operator at::Scalar() const { return argument(); }

double Number::argument() const {
  if (auto* notes = graph::NumberNotes::current()) notes->note_given(node_);
  return node_->value();
}

double Number::value() const {
  if (auto* notes = graph::NumberNotes::current()) notes->note_asked(*node_);
  return node_->value();
}

void Number::set(double value) {
  const auto* named = dynamic_cast<const graph::NamedNumber*>(node_.get());
  if (named == nullptr) {
    throw UsageError({.what = fmt::format("{} is calculated, and cannot be set", node_->text()),
                      .fix = "set the numbers that it is calculated of"});
  }
  named->set(value);
}

Number operator-(const Number& number) {
  return Number(graph::unary(
      "(-{})", [](double x) { return -x; }, number.node_));
}
Number operator+(const Number& left, const Number& right) {
  return Number(graph::binary(
      "({} + {})", [](double a, double b) { return a + b; }, left.node_, right.node_));
}
Number operator-(const Number& left, const Number& right) {
  return Number(graph::binary(
      "({} - {})", [](double a, double b) { return a - b; }, left.node_, right.node_));
}
Number operator*(const Number& left, const Number& right) {
  return Number(graph::binary(
      "({} * {})", [](double a, double b) { return a * b; }, left.node_, right.node_));
}
Number operator/(const Number& left, const Number& right) {
  return Number(graph::binary(
      "({} / {})", [](double a, double b) { return a / b; }, left.node_, right.node_));
}
Number pow(const Number& base, const Number& exponent) {
  return Number(graph::binary(
      "pow({}, {})", [](double a, double b) { return std::pow(a, b); }, base.node_, exponent.node_));
}
Number sqrt(const Number& number) {
  return Number(graph::unary(
      "sqrt({})", [](double x) { return std::sqrt(x); }, number.node_));
}
Number exp(const Number& number) {
  return Number(graph::unary(
      "exp({})", [](double x) { return std::exp(x); }, number.node_));
}
Number log(const Number& number) {
  return Number(graph::unary(
      "log({})", [](double x) { return std::log(x); }, number.node_));
}
Number min(const Number& left, const Number& right) {
  return Number(graph::binary(
      "min({}, {})", [](double a, double b) { return std::min(a, b); }, left.node_, right.node_));
}
Number max(const Number& left, const Number& right) {
  return Number(graph::binary(
      "max({}, {})", [](double a, double b) { return std::max(a, b); }, left.node_, right.node_));
}

}  // namespace pianola
