#include <pianola/cuda/capture_mode.hpp>

#include <pianola/cuda/fake_driver.hpp>

#include <gtest/gtest.h>

namespace pianola::capture_mode_test {
namespace {

TEST(RelaxedCaptureMode, RelaxesAndPutsBackAlsoWhenNested) {
  FakeDriver fake;
  fake.mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
  {
    const RelaxedCaptureMode outer(fake.table());
    EXPECT_EQ(fake.mode, CU_STREAM_CAPTURE_MODE_RELAXED);
    {
      const RelaxedCaptureMode inner(fake.table());
      EXPECT_EQ(fake.mode, CU_STREAM_CAPTURE_MODE_RELAXED);
    }
    EXPECT_EQ(fake.mode, CU_STREAM_CAPTURE_MODE_RELAXED);
  }
  EXPECT_EQ(fake.mode, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
}

TEST(RelaxedCaptureMode, PutsNothingBackThatItCouldNotChange) {
  FakeDriver fake;
  fake.failures["cuThreadExchangeStreamCaptureMode"] = CUDA_ERROR_DEINITIALIZED;
  { const RelaxedCaptureMode relaxed(fake.table()); }
  EXPECT_EQ(fake.calls("cuThreadExchangeStreamCaptureMode"), 1U);
}

}  // namespace
}  // namespace pianola::capture_mode_test
