#include <pianola/profile/show/html_text.hpp>

#include <gtest/gtest.h>

#include <string>

namespace pianola::profiling::html_text_test {
namespace {

TEST(HtmlTextTest, EscapesWhatMeansSomethingInHtml) {
  EXPECT_EQ(escaped("f<float, 4>(a && \"b\", 'c')"), "f&lt;float, 4&gt;(a &amp;&amp; &quot;b&quot;, &#39;c&#39;)");
  EXPECT_EQ(escaped("&lt;"), "&amp;lt;");
}

TEST(HtmlTextTest, ControlCharactersAreBlanksAndLineBreaksStay) {
  EXPECT_EQ(escaped("a\tb\nc"
                    "\x01"
                    "d\x7F"),
            "a b\nc d ");
  EXPECT_EQ(escaped(std::string("a\0b", 3)), "a b");
}

TEST(HtmlTextTest, KeepsUtf8AndReplacesWhatIsNot) {
  EXPECT_EQ(escaped("Größe \xE2\x82\xAC \xF0\x9F\x98\x80"), "Größe \xE2\x82\xAC \xF0\x9F\x98\x80");
  EXPECT_EQ(escaped("a\xFFz"), "a\xEF\xBF\xBDz");
  EXPECT_EQ(escaped("\xC3"), "\xEF\xBF\xBD") << "cut in the middle";
  EXPECT_EQ(escaped("\xC0\xBC"), "\xEF\xBF\xBD\xEF\xBF\xBD") << "an overlong <";
  EXPECT_EQ(escaped("\xED\xA0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD") << "a surrogate";
}

TEST(HtmlTextTest, CutsBeforeItEscapesSoThatNoEntityIsCut) {
  EXPECT_EQ(escaped("<<<<", 4), "&lt;&lt;&lt;&lt;");
  EXPECT_EQ(escaped("<<<<<", 4), "&lt;&lt;&lt;…");
  EXPECT_EQ(escaped("a\nb", 10), "a b");
}

TEST(HtmlTextTest, NumbersStayWithTheirUnits) {
  EXPECT_EQ(unbroken("42 % of 12.3 ms, 5 steps, 4 us"), "42\u00A0% of 12.3\u00A0ms, 5 steps, 4\u00A0us");
  EXPECT_EQ(unbroken(" 3 "), " 3 ");
  EXPECT_EQ(unbroken(""), "");
}

TEST(HtmlTextTest, AKernelIsReadWithoutItsParameters) {
  EXPECT_EQ(readable("void at::native::fill<4, Op<float> >(int, Op<float>, void (*)(int))"), "fill<4, Op<float> >");
  EXPECT_EQ(readable("ampere_sgemm_128x64_tn"), "ampere_sgemm_128x64_tn");
  EXPECT_EQ(readable("(anonymous namespace)::scan(int*)"), "scan");
  EXPECT_EQ(readable("at::native::(anonymous namespace)::apply<at::native::Adam>(int)"), "apply<Adam>");
  EXPECT_EQ(readable("gemm(float) [clone .kd]"), "gemm");
  EXPECT_EQ(readable("(odd)"), "(odd)");
  EXPECT_EQ(readable("cut)"), "cut)");
  EXPECT_EQ(readable(""), "");
}

}  // namespace
}  // namespace pianola::profiling::html_text_test
