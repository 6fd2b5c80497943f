#include <pianola/cuda/driver.hpp>

#include <pianola/core/error.hpp>
#include <pianola/cuda/gpu_test.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pianola::driver_test {
namespace {

using ::testing::HasSubstr;

TEST(Driver, IsEitherAvailableOrSaysWhyNotAndWhatToDo) {
  EXPECT_EQ(Driver::available(), Driver::try_get() != nullptr);
  if (Driver::available()) {
    EXPECT_EQ(&Driver::get(), Driver::try_get());
    return;
  }
  try {
    (void)Driver::get();
    FAIL() << "expected a DeviceError";
  } catch (const DeviceError& error) {
    EXPECT_FALSE(error.diagnosis().what.empty());
    EXPECT_THAT(error.diagnosis().fix, HasSubstr("cpu"));
  }
}

class GpuDriver : public GpuTest {};

TEST_F(GpuDriver, HasEveryEntryPoint) {
#define PIANOLA_EXPECT_BOUND(member, symbol, version) EXPECT_NE(driver->member, nullptr) << #symbol;
  PIANOLA_DRIVER_ENTRY_POINTS(PIANOLA_EXPECT_BOUND)
#undef PIANOLA_EXPECT_BOUND
}

TEST_F(GpuDriver, RunsAKernel) {
  launch_add(stream, data, 3);
  launch_add(stream, data, 4);
  EXPECT_EQ(read(data), 7U);
}

}  // namespace
}  // namespace pianola::driver_test
