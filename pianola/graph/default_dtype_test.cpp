#include <pianola/graph/default_dtype.hpp>

#include <c10/core/DefaultDtype.h>
#include <c10/core/ScalarType.h>

#include <gtest/gtest.h>

#include <optional>

namespace pianola::graph::default_dtype_test {
namespace {

const caffe2::TypeMeta kFloat = caffe2::TypeMeta::Make<float>(), kDouble = caffe2::TypeMeta::Make<double>();

TEST(DefaultDtypeTest, IsPutBackWhereItWasChanged) {
  {
    DefaultDtype dtype;
    dtype.become(kFloat);
    dtype.become(kDouble);
    EXPECT_EQ(c10::get_default_dtype(), kDouble);
  }
  EXPECT_EQ(c10::get_default_dtype(), kFloat);
}

// A replay in a part of another one.
TEST(DefaultDtypeTest, AnInnerOnePutsBackWhatItFound) {
  DefaultDtype outer;
  outer.become(kDouble);
  outer.become(kFloat);
  {
    DefaultDtype inner;
    inner.become(kDouble);
  }
  EXPECT_EQ(c10::get_default_dtype(), kFloat);
}

TEST(DefaultDtypeTest, TheLastOfSeveralPutsBackWhatWasThereBeforeTheFirst) {
  std::optional<DefaultDtype> first(std::in_place), second(std::in_place);
  first->become(kDouble);
  second->become(kFloat);  // met the other one's
  first.reset();
  EXPECT_EQ(c10::get_default_dtype(), kFloat);
  second.reset();
  EXPECT_EQ(c10::get_default_dtype(), kFloat);
}

}  // namespace
}  // namespace pianola::graph::default_dtype_test
