#pragma once
#include <pianola/graph/testing/device_test.hpp>
#include <pianola/training/static_inputs.hpp>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace pianola::testing {

/// Batches of nested values, in host memory unless a test says otherwise.
class StaticInputsFixture : public DeviceTest {
 protected:
  using Batch = std::vector<c10::IValue>;
  using Entries = std::vector<std::pair<std::string, c10::IValue>>;

  static at::Tensor floats(at::IntArrayRef sizes, std::uint64_t seed) {
    return at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed));
  }
  static at::Tensor numbers(at::IntArrayRef sizes, std::uint64_t seed) {
    return at::randint(100, sizes, at::make_generator<at::CPUGeneratorImpl>(seed));
  }

  static c10::IValue dict(const Entries& entries) {
    c10::impl::GenericDict result(c10::StringType::get(), c10::AnyType::get());
    for (const auto& [key, value] : entries) result.insert(key, value);
    return result;
  }
  static c10::IValue list(const std::vector<c10::IValue>& entries) {
    c10::impl::GenericList result(c10::AnyType::get());
    for (const c10::IValue& entry : entries) result.push_back(entry);
    return result;
  }
  static c10::IValue tuple(std::vector<c10::IValue> entries) { return c10::ivalue::Tuple::create(std::move(entries)); }

  static at::Tensor at_key(const c10::IValue& value, const std::string& key) {
    return value.toGenericDict().at(key).toTensor();
  }

  /// On the host, also where they are on a device.
  static void expect_values(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected,
                            const std::string& when = "") {
    ASSERT_EQ(actual.size(), expected.size()) << when;
    for (std::size_t i = 0; i < actual.size(); ++i) {
      EXPECT_TRUE(same(actual[i].cpu(), expected[i].cpu())) << "tensor " << i << " " << when;
    }
  }
};

}  // namespace pianola::testing
