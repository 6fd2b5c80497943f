#include <pianola/memory/show/picture.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace pianola::memory::picture_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Picture two_blocks() {
  Picture picture;
  picture.title = "a </script> step";
  picture.blocks = {{.life = {.made = 0, .freed = 2, .bytes = 600}, .owner = 0, .made_in = 0, .freed_in = 1},
                    {.life = {.made = 1, .bytes = 512}, .owner = 1, .made_in = 1}};
  picture.owners = {"mm at train.py:3", "relu at train.py:4"};
  picture.places = plan_offsets(std::vector{picture.blocks[0].life, picture.blocks[1].life});
  picture.pool = 2U << 20U;
  return picture;
}

TEST(PictureTest, ThePageHasEachBlockWithItsPlaceAndItsOwner) {
  const std::string page = to_html(two_blocks());
  EXPECT_THAT(page, HasSubstr("[0,2,0,1024,0,0,1]"));
  EXPECT_THAT(page, HasSubstr("[1,3,1024,512,1,1,-1]")) << "in use to the end";
  EXPECT_THAT(page, HasSubstr("relu at train.py:4"));
  EXPECT_THAT(page, HasSubstr(R"("bytes":1536,"bound":1536,"pool":2097152)"));
}

TEST(PictureTest, OfAPoolThePageHasItsSegments) {
  Picture picture = two_blocks();
  picture.segments = {0, 1U << 20U};
  EXPECT_THAT(to_html(picture), HasSubstr(R"("segments":[0,1048576])"));
}

TEST(PictureTest, ATextOfTheStepEndsNoScript) { EXPECT_THAT(to_html(two_blocks()), Not(HasSubstr("a </script>"))); }

TEST(PictureTest, AStepWithoutBlocksHasAPageToo) {
  Picture nothing;
  nothing.title = "nothing";
  EXPECT_THAT(to_html(nothing), HasSubstr(R"("blocks":[])"));
}

}  // namespace
}  // namespace pianola::memory::picture_test
