#include <pianola/trace/resized_storage.hpp>

#include <pianola/trace/op_stream.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DispatchKeySet.h>

#include <string>

namespace pianola::trace {
namespace {

at::Tensor tensor_on(const c10::Storage& storage) {
  const c10::DispatchKeySet keys(storage.device_type() == c10::kCPU ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA);
  at::Tensor tensor =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), keys, caffe2::TypeMeta::Make<std::uint8_t>());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({0});
  return tensor;
}

thread_local bool for_users = false;

}  // namespace

bool resizes_for_users() noexcept { return for_users; }

// The operator comes with torch's Python: programs without it have no FSDP2.
bool resize_by_operator(const c10::Storage& storage, std::size_t bytes, bool is_of_fsdp) {
  const c10::DeviceType device = storage.device_type();
  if (!OpStream::watches_this_thread() || (device != c10::kCPU && device != c10::kCUDA)) return false;
  static const auto op = c10::Dispatcher::singleton().findSchema({std::string(kResizesStorage), ""});
  if (!op) return false;
  struct ForUsers {
    explicit ForUsers(bool is) { for_users = is; }
    ForUsers(const ForUsers&) = delete;
    ForUsers& operator=(const ForUsers&) = delete;
    ~ForUsers() { for_users = false; }
  };
  const ForUsers whose(!is_of_fsdp);
  op->typed<void(const at::Tensor&, c10::SymInt)>().call(tensor_on(storage),
                                                         c10::SymInt(static_cast<std::int64_t>(bytes)));
  return true;
}

}  // namespace pianola::trace
