#pragma once
#include <pianola/cuda/driver.hpp>
#include <pianola/cuda/error_codes.hpp>

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>

namespace pianola::auditing {

/// A kernel that ATen knows nothing of: multiplies floats by a factor. Needs a device that torch has begun to use.
class RawKernel {
 public:
  RawKernel() {
    check(driver_.module_load_data(&module_, kPtx), "cuModuleLoadData");
    check(driver_.module_get_function(&function_, module_, "scale"), "cuModuleGetFunction");
  }
  RawKernel(const RawKernel&) = delete;
  RawKernel& operator=(const RawKernel&) = delete;
  ~RawKernel() { driver_.module_unload(module_); }

  /// On the current stream.
  void operator()(const at::Tensor& x, float factor) const {
    launch(x, factor, c10::cuda::getCurrentCUDAStream(x.device().index()).stream());
  }
  void launch(const at::Tensor& x, float factor, CUstream stream) const {
    void* data = x.data_ptr();
    auto count = static_cast<std::uint32_t>(x.numel());
    void* arguments[] = {&data, &factor, &count};
    check(driver_.launch_kernel(function_, 1, 1, 1, 256, 1, 1, 0, stream, arguments, nullptr), "cuLaunchKernel");
  }

 private:
  static constexpr const char* kPtx = R"(
.version 7.0
.target sm_50
.address_size 64
.visible .entry scale(.param .u64 data, .param .f32 factor, .param .u32 count)
{
  .reg .pred %p<2>;
  .reg .b32 %r<3>;
  .reg .f32 %f<4>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [data];
  ld.param.f32 %f1, [factor];
  ld.param.u32 %r1, [count];
  mov.u32 %r2, %tid.x;
  setp.ge.u32 %p1, %r2, %r1;
  @%p1 bra done;
  cvta.to.global.u64 %rd2, %rd1;
  mul.wide.u32 %rd3, %r2, 4;
  add.s64 %rd2, %rd2, %rd3;
  ld.global.f32 %f2, [%rd2];
  mul.f32 %f3, %f2, %f1;
  st.global.f32 [%rd2], %f3;
done:
  ret;
}
)";

  const Driver& driver_ = Driver::get();
  CUmodule module_ = nullptr;
  CUfunction function_ = nullptr;
};

}  // namespace pianola::auditing
