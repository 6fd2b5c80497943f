#include <pianola/trace/observer_failure.hpp>

#include <pianola/core/out_of_memory_error.hpp>
#include <pianola/trace/testing/device_test.hpp>

#include <c10/util/Exception.h>

#include <gmock/gmock.h>

#include <functional>
#include <new>
#include <stdexcept>
#include <vector>

namespace pianola::trace::observer_failure_test {
namespace {

using pianola::testing::refusal;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

void note(ObserverFailure& failure, const char* op, const std::function<void()>& thrower) {
  try {
    thrower();
  } catch (...) {
    failure.note(op);
  }
}

TEST(ObserverFailure, IsNoneWhereNothingWasThrown) { EXPECT_FALSE(ObserverFailure().diagnosis().has_value()); }

TEST(ObserverFailure, TellsWhatWasThrownFirst) {
  ObserverFailure failure;
  note(failure, "aten::mul", [] { throw std::runtime_error("no room"); });
  note(failure, "aten::add", [] { throw std::bad_alloc(); });
  EXPECT_THAT(refusal<CaptureError>("a failure", [&] { throw_failure(*failure.diagnosis()); }),
              AllOf(HasSubstr("could not be recorded, from aten::mul on: no room;"), HasSubstr("report it"),
                    Not(HasSubstr("aten::add"))));
}

TEST(ObserverFailure, TellsTheOperationAloneWhereTheExceptionSaysNothing) {
  ObserverFailure failure;
  note(failure, "aten::mul", [] { throw 7; });  // NOLINT: what is no std::exception
  EXPECT_THAT(failure.diagnosis()->what, HasSubstr("from aten::mul on;"));
}

TEST(ObserverFailure, OfMemoryIsAnOutOfMemoryError) {
  const std::vector<std::function<void()>> throwers{
      [] { throw std::bad_alloc(); },
      [] { TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory"); },
      [] { TORCH_CHECK(false, "DefaultCPUAllocator: can't allocate memory"); },
      [] { throw OutOfMemoryError({.what = "the pool is full"}); },
  };
  for (const auto& thrower : throwers) {
    ObserverFailure failure;
    note(failure, "aten::mul", thrower);
    ASSERT_TRUE(failure.diagnosis().has_value());
    EXPECT_THAT(refusal<OutOfMemoryError>("a lack of memory", [&] { throw_failure(*failure.diagnosis()); }),
                AllOf(HasSubstr("from aten::mul on: "), HasSubstr("free memory")));
  }
}

}  // namespace
}  // namespace pianola::trace::observer_failure_test
