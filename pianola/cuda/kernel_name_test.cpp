#include <pianola/cuda/kernel_name.hpp>

#include <gtest/gtest.h>

#include <string>

namespace pianola::kernel_name_test {
namespace {

struct Name {
  const char* name;
  const char* demangled;
  const char* shortened;
};
class ShortKernelName : public ::testing::TestWithParam<Name> {};

TEST_P(ShortKernelName, KeepsTheNameAlone) { EXPECT_EQ(short_kernel_name(GetParam().demangled), GetParam().shortened); }
INSTANTIATE_TEST_SUITE_P(
    Names, ShortKernelName,
    ::testing::Values(
        Name{"Template",
             "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> "
             ">(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)",
             "at::native::vectorized_elementwise_kernel"},
        Name{"PlainFunction", "add(float*, float const*, int)", "add"},
        Name{"Symbol", "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x64x32",
             "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x64x32"},
        Name{"AnonymousNamespace", "void at::native::(anonymous namespace)::softmax<float, 2>(float*, int)",
             "at::native::(anonymous namespace)::softmax"},
        Name{"TwoWordReturnType", "unsigned int hash<int>(int)", "hash"},
        Name{"LambdaInArguments",
             "void at::native::unrolled<at::native::copy()::{lambda()#1}::operator()() const::{lambda(float)#2}>(int)",
             "at::native::unrolled"},
        Name{"ArrowInArguments", "void run<decltype ((f)->g)>(int)", "run"},
        Name{"NestedInAFunction", "outer(int)::Local::kernel(float)", "outer::Local::kernel"},
        Name{"Wrapper", "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_nn>(cutlass_80_tensorop::Params)",
             "cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_nn>"},
        Name{"WrapperOfATemplate",
             "void cutlass::device_kernel<flash::enable_sm90<flash::FwdSm90<float, 2> > >(flash::Params)",
             "cutlass::device_kernel<flash::enable_sm90>"},
        Name{"Clone", "add(int) [clone .part.0]", "add"}, Name{"Nothing", "", ""},
        Name{"Unbalanced", "void broken<<<(", "broken"}),
    [](const auto& each) { return std::string(each.param.name); });

TEST(Demangle, TurnsSymbolsIntoCppNames) { EXPECT_EQ(demangle("_ZN2at3addEPfi"), "at::add(float*, int)"); }

TEST(Demangle, LeavesOtherSymbolsAlone) {
  EXPECT_EQ(demangle("triton_poi_fused_add_0"), "triton_poi_fused_add_0");
  EXPECT_EQ(demangle(""), "");
}

}  // namespace
}  // namespace pianola::kernel_name_test
