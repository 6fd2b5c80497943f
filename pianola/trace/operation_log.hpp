#pragma once
#include <pianola/core/error.hpp>
#include <pianola/trace/call_site.hpp>
#include <pianola/trace/op_stream.hpp>

#include <ATen/core/ivalue.h>

#include <complex>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace pianola::trace {

// Note [Runs that are alike]
// A graph repeats the operations of one run, and the numbers of the host that they were given. It is right where every
// run has the same ones. Two things may differ that are no doing of the function: autograd moves a gradient into its
// leaf, or copies it, or adds it to the one that is there, as it finds the leaf; and it adds up gradients in place if
// nobody else holds them. So what the node of an accumulated gradient does with it does not count, and operations count
// as alike that compute the same, in place or not. What only allocates does not count either, nor do detach() and
// detach_(), which zero_grad() calls on the gradients that it drops, if there are some. A late read (late_read.hpp) is made in
// calls that run eagerly alone.

/// What one run of a function did: its operations, the numbers of the host and the shapes that they were given, and where
/// they were called.
class OperationLog final : public OpObserver {
 public:
  /// @param host_numbers  Whether numbers count that torch turns into tensors; runs are alike only where both logs say so.
  explicit OperationLog(bool host_numbers = true) : host_numbers_(host_numbers) {}
  [[nodiscard]] OpInterest interest() const override { return {.outputs = false, .host_numbers = host_numbers_}; }
  void on_op_begin(const OpSpan& op) override;

  [[nodiscard]] bool empty() const noexcept { return ops_.empty(); }
  /// Whether an operator of this name was called: "aten::mm".
  [[nodiscard]] bool has_called(std::string_view name) const;
  /// Operations that were called.
  [[nodiscard]] std::size_t size() const noexcept { return ops_.size(); }
  /// The first thing that one run did otherwise than another, nothing where they are alike.
  /// "aten::mul.Tensor was given 0.5 in one call and 0.25 in the next".
  /// @param numbers_count  Whether other numbers are a difference.
  [[nodiscard]] static std::optional<Diagnosis> difference(const OperationLog& before, const OperationLog& now,
                                                           bool numbers_count = true);
  /// A number that was another one in each of three runs, which were alike otherwise; not one of a part of the host.
  /// "aten::mul.Tensor was given 1 in one call and 2 in the next".
  [[nodiscard]] static std::optional<Diagnosis> changing_number(const OperationLog& first, const OperationLog& second,
                                                                const OperationLog& third);
  /// Whether numbers differ that parts of the host gave, which are no difference: see HostCalls. As far as both went one way.
  [[nodiscard]] static bool numbers_of_host_differ(const OperationLog& before, const OperationLog& now);
  /// difference() of a call and the capture after it: "in the call before it and ... in the capture".
  [[nodiscard]] static std::optional<Diagnosis> difference_of_capture(const OperationLog& call,
                                                                      const OperationLog& capture,
                                                                      bool numbers_count = true);
  /// The same behind two calls that were alike but for numbers: of these, only those count that were the same in both.
  [[nodiscard]] static std::optional<Diagnosis> difference_of_capture(const OperationLog& before,
                                                                      const OperationLog& call,
                                                                      const OperationLog& capture);

  using Number = std::variant<bool, std::int64_t, double, std::complex<double>>;
  /// Numbers that the operations were given, in order; alike runs have as many.
  [[nodiscard]] const std::vector<Number>& numbers() const noexcept { return numbers_; }
  /// What was given one of them.
  struct Receiver {
    std::uint64_t operation;  ///< OpSpan::number
    const OpInfo* info;
    std::size_t argument;
    bool is_in_list;
    bool is_copied;   ///< No argument: it stands for the values that a copy from the host copied.
    bool is_in_part;  ///< An active part of the host gave it: see HostCalls.
  };
  [[nodiscard]] std::vector<Receiver> receivers() const;
  [[nodiscard]] static bool same_number(const Number& one, const Number& other);

  /// Where an operation of this number (OpSpan::number) was called; empty where it is not known.
  [[nodiscard]] CallSite site_of(std::uint64_t number) const;
  /// Its name; empty where it is not known.
  [[nodiscard]] std::string_view name_of(std::uint64_t number) const;
  /// Frees what only messages need.
  void forget_places();

 private:
  // Numbers of an active part are made anew for each replay, those of a passive one could be.
  enum class HostPart : std::uint8_t { none, passive, active };
  struct Op {
    const OpInfo* info;
    std::uint64_t number;   // OpSpan::number
    std::uint32_t numbers;  // of the host, that it was given
    bool is_backward;
    std::uint64_t shapes;  // a hash of types and sizes of its tensors
    std::uint32_t scope;   // the optimizer whose step it is part of, as an index of scopes_
    HostPart part;         // that it is in
  };
  struct Words;
  void add(const OpSpan& op, const c10::IValue& value);
  void add_copied(const at::Tensor& source);
  [[nodiscard]] std::uint32_t index_of_scope(std::span<const std::string> scopes);
  [[nodiscard]] std::size_t index_of(std::uint64_t number) const;
  [[nodiscard]] std::string words_for(std::size_t index) const;
  [[nodiscard]] std::string optimizer_words(std::size_t index, std::size_t number) const;
  [[nodiscard]] std::string optimizer_fix(std::size_t index) const;
  [[nodiscard]] static std::optional<Diagnosis> compare(const OperationLog& a, const OperationLog& b,
                                                        const Words& words);
  [[nodiscard]] static bool may_differ(const Op& was, const Op& is, const Words& words);
  [[nodiscard]] static Diagnosis other_number(const OperationLog& a, const OperationLog& b, std::size_t at,
                                              std::size_t number);
  [[nodiscard]] static Diagnosis other_path(const OperationLog& a, const OperationLog& b, std::size_t at,
                                            const Words& words);

  bool host_numbers_;
  std::vector<Op> ops_;
  std::vector<Number> numbers_;             // of all operations, in order
  std::vector<std::uint16_t> arguments_;    // of the operation, that each of them is or is in
  std::vector<std::string> scopes_ = {""};  // optimizers whose steps were open
  std::vector<CallSite> places_;            // of each operation; empty where forgotten
};

}  // namespace pianola::trace
