#include <pianola/graph/read_check.hpp>

#include <pianola/graph/island.hpp>
#include <pianola/trace/late_read.hpp>
#include <pianola/trace/quiet_scope.hpp>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <cstdint>
#include <utility>

namespace pianola::graph {
namespace {

class CheckOfRead final : public torch::CustomClassHolder {
 public:
  CheckOfRead(ReadCheck check, std::string what) : check_(std::move(check)), what_(std::move(what)) {}

  void run(const std::vector<at::Tensor>& tensors) const {
    if (Islands::step_is_recorded()) return;
    const trace::QuietScope quiet;
    if (check_(tensors)) return;
    throw OtherValue({.what = what_ + " is another one than when the step was captured",
                      .fix = "nothing: the call is made eagerly"});
  }

 private:
  ReadCheck check_;
  std::string what_;
};

void kernel(std::vector<at::Tensor> tensors, const c10::intrusive_ptr<CheckOfRead>& check, std::int64_t /*behind*/) {
  check->run(tensors);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(pianola, library) {
  library.class_<CheckOfRead>("CheckOfRead");
  library.def("check_read(Tensor[] tensors, __torch__.torch.classes.pianola.CheckOfRead check, int behind) -> ()");
}
TORCH_LIBRARY_IMPL(pianola, CompositeExplicitAutograd, library) { library.impl("check_read", &kernel); }

OtherValue::~OtherValue() = default;

// Only captures have it, so that their operations are compared without it.
void check_in_replays(std::vector<at::Tensor> tensors, ReadCheck check, std::string what, std::size_t behind) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(kReadCheck, "");
  const trace::LateRead unlogged;
  const at::AutoDispatchBelowAutograd no_history;
  op.typed<void(std::vector<at::Tensor>, const c10::intrusive_ptr<CheckOfRead>&, std::int64_t)>().call(
      std::move(tensors), c10::make_intrusive<CheckOfRead>(std::move(check), std::move(what)),
      static_cast<std::int64_t>(behind));
}

std::optional<std::size_t> place_of_check(const std::string& operation, c10::ArrayRef<c10::IValue> inputs) {
  if (operation != kReadCheck) return std::nullopt;
  return static_cast<std::size_t>(inputs[2].toInt());
}

}  // namespace pianola::graph
