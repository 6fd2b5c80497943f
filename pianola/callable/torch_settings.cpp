#include <pianola/callable/torch_settings.hpp>

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <initializer_list>

namespace pianola::callable {
namespace {

std::uint32_t packed(std::initializer_list<bool> flags) {
  std::uint32_t result = 0;
  for (const bool flag : flags) result = (result << 1U) | static_cast<std::uint32_t>(flag);
  return result;
}

// Not float32MatmulPrecision() and the like, which throw where a program uses both of torch's interfaces to these.
std::uint32_t precisions_of(const at::Context& context) {
  using at::Float32Backend, at::Float32Op;
  std::uint32_t result = packed({context.allowFP16AccumulationCuBLAS(), context.allowFP16ReductionCPU()});
  const auto add = [&](auto value) { result = (result << 3U) | static_cast<std::uint32_t>(value); };
  add(context.allowFP16ReductionCuBLAS());
  add(context.allowBF16ReductionCuBLAS());
  for (const Float32Backend backend : {Float32Backend::CUDA, Float32Backend::MKLDNN}) {
    for (const Float32Op op : {Float32Op::MATMUL, Float32Op::CONV, Float32Op::RNN}) {
      add(context.float32Precision(backend, op));
    }
  }
  return result;
}

}  // namespace

TorchSettings TorchSettings::current() {
  const at::Context& context = at::globalContext();
  return {.flags =
              packed({context.deterministicAlgorithms(), context.deterministicAlgorithmsWarnOnly(),
                      context.deterministicFillUninitializedMemory(), context.userEnabledCuDNN(),
                      context.benchmarkCuDNN(), context.deterministicCuDNN(), context.userEnabledMkldnn(),
                      context.deterministicMkldnn(), context.userEnabledNNPACK(), context.userEnabledFlashSDP(),
                      context.userEnabledMemEfficientSDP(), context.userEnabledMathSDP(), context.userEnabledCuDNNSDP(),
                      context.userEnabledOverrideableSDP(), context.allowFP16BF16ReductionMathSDP()}),
          .precisions = precisions_of(context),
          .threads = at::get_num_threads()};
}

}  // namespace pianola::callable
