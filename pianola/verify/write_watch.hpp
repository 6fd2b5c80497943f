#pragma once
#include <pianola/trace/call_site.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/verify/report.hpp>
#include <pianola/verify/state.hpp>

#include <c10/core/StorageImpl.h>
#include <c10/util/flat_hash_map.h>

#include <cstddef>
#include <string>
#include <vector>

namespace pianola::verification {

/// Sees what a run writes from outside, has the state save it before, and notes what nobody had listed.
class WriteWatch final : public trace::OpObserver {
 public:
  /// @param own  The inputs of the run, which are its to write.
  WriteWatch(State& state, const std::vector<at::Tensor>& own);

  void on_op_begin(const trace::OpSpan& op) override;

  /// What was written and had not been listed; slow (it looks up source lines).
  [[nodiscard]] std::vector<MissingState> missing() const;
  /// Operations that drew from a generator that nobody listed, each as "aten::dropout at model.cpp:7"; slow.
  [[nodiscard]] std::vector<std::string> unlisted_draws() const;
  /// What went wrong while saving; empty where nothing did.
  [[nodiscard]] const std::string& trouble() const noexcept { return trouble_; }

 private:
  struct Seen {
    std::string what;
    std::string op;
    trace::CallSite site;
  };
  void look_at(const trace::OpSpan& op);
  void look_at(const trace::OpSpan& op, const at::Tensor& tensor, bool written);
  [[nodiscard]] bool is_own(const at::Tensor& tensor, const trace::OpSpan& op) const;

  State& state_;
  ska::flat_hash_set<const c10::StorageImpl*> own_;
  std::vector<Seen> missing_, draws_;
  std::string trouble_;
};

}  // namespace pianola::verification
