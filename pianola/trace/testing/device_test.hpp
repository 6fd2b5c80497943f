#pragma once
#include <pianola/core/error.hpp>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <c10/util/ThreadLocalDebugInfo.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#if PIANOLA_WITH_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#endif

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pianola::testing {

/// Tensors with the names that a failure prints.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

inline NamedTensors clone_all(const NamedTensors& tensors) {
  NamedTensors copies;
  for (const auto& [name, tensor] : tensors) copies.emplace_back(name, tensor.defined() ? tensor.clone() : tensor);
  return copies;
}

/// Bit for bit, layout excluded; undefined equals undefined.
inline ::testing::AssertionResult same(const at::Tensor& actual, const at::Tensor& expected) {
  if (!actual.defined() || !expected.defined()) {
    if (actual.defined() == expected.defined()) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << (actual.defined() ? "defined, expected undefined" : "undefined");
  }
  if (actual.sizes() != expected.sizes() || actual.scalar_type() != expected.scalar_type()) {
    return ::testing::AssertionFailure() << actual.toString() << actual.sizes() << " instead of " << expected.toString()
                                         << expected.sizes();
  }
  if (at::equal(actual, expected)) return ::testing::AssertionSuccess();
  const at::Tensor difference = (actual.to(at::kDouble) - expected.to(at::kDouble)).abs();
  return ::testing::AssertionFailure() << "differs in " << difference.ne(0).sum().item<std::int64_t>() << " of "
                                       << actual.numel() << " elements, by up to " << difference.max().item<double>();
}

inline void expect_same(const NamedTensors& actual, const NamedTensors& expected, const std::string& when = "") {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_TRUE(same(actual[i].second, expected[i].second)) << expected[i].first << " " << when;
  }
}

/// One suite for every backend: "cpu" always; "cuda" where there is a GPU, skipped elsewhere, failed where the
/// environment promises one (PIANOLA_REQUIRE_CUDA=1). Use PIANOLA_ON_EVERY_DEVICE(Suite).
class DeviceTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (on_cuda() && !at::globalContext().hasCUDA()) {
      const char* required = std::getenv("PIANOLA_REQUIRE_CUDA");
      if (required != nullptr && std::string_view(required) == "1") {
        FAIL() << "PIANOLA_REQUIRE_CUDA=1, but there is no CUDA device";
      }
      GTEST_SKIP() << "no CUDA device";
    }
    if (on_cuda()) at::globalContext().lazyInitDevice(c10::kCUDA);
    seed(0);
  }

  /// Whatever a test did, the device works, nothing captures any more, and nobody watches what this thread does.
  void TearDown() override {
    if (IsSkipped() || (on_cuda() && !at::globalContext().hasCUDA())) return;
#if PIANOLA_WITH_CUDA
    if (on_cuda()) {
      cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
      EXPECT_EQ(cudaStreamIsCapturing(c10::cuda::getCurrentCUDAStream().stream(), &status), cudaSuccess);
      EXPECT_EQ(status, cudaStreamCaptureStatusNone);
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
#endif
    EXPECT_EQ(c10::ThreadLocalDebugInfo::current(), nullptr) << "after the test";
    EXPECT_TRUE(same(randn({3}) + 1, randn({3}) + 1)) << "after the test";
  }

  [[nodiscard]] static bool on_cuda() { return std::string_view(GetParam()) == "cuda"; }
  [[nodiscard]] static c10::Device device() { return c10::Device(on_cuda() ? "cuda:0" : "cpu"); }

  static void synchronize() {
#if PIANOLA_WITH_CUDA
    if (on_cuda()) {
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
#endif
  }

  /// The same numbers for the same seed on every device; the default generators are not touched.
  [[nodiscard]] static at::Tensor randn(at::IntArrayRef sizes, std::uint64_t seed = 1) {
    return at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed)).to(device());
  }
  [[nodiscard]] static at::Tensor randint(std::int64_t high, at::IntArrayRef sizes, std::uint64_t seed = 1) {
    return at::randint(high, sizes, at::make_generator<at::CPUGeneratorImpl>(seed)).to(device());
  }

  [[nodiscard]] static at::Generator generator() { return at::globalContext().defaultGenerator(device()); }
  static void seed(std::uint64_t value) {
    at::Generator chosen = generator();
    const std::lock_guard lock(chosen.mutex());
    chosen.set_current_seed(value);
  }
  [[nodiscard]] static at::Tensor state_of(at::Generator chosen) {
    const std::lock_guard lock(chosen.mutex());
    return chosen.get_state();
  }
};

inline std::string device_name(const ::testing::TestParamInfo<const char*>& tested) { return tested.param; }
#define PIANOLA_ON_EVERY_DEVICE(Suite) \
  INSTANTIATE_TEST_SUITE_P(On, Suite, ::testing::Values("cpu", "cuda"), ::pianola::testing::device_name)

/// The message with which `call` is refused; a failure where it throws no E. Each message is printed once, as
/// "refused <title>: ...", so that a test run lists them.
template <typename E>
std::string refusal(const std::string& title, const std::function<void()>& call) {
  try {
    call();
  } catch (const E& error) {
    static std::set<std::string> printed;
    if (printed.insert(title).second) std::cout << "refused " << title << ": " << error.what() << std::endl;
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << title << ": another error than expected: " << error.what();
    return "";
  }
  ADD_FAILURE() << title << ": was not refused";
  return "";
}

}  // namespace pianola::testing
