#include "common/base/shared_text.h"

#include <string>
#include <string_view>

#include "gtest/gtest.h"

namespace bdn {
namespace {

TEST(SharedText, ReadsAsTheTextThatWentIn) {
  const SharedText text = "ef(onebit(block=256))";
  const std::string& same = text;
  const std::string_view view = text;
  EXPECT_EQ(same, "ef(onebit(block=256))");
  EXPECT_EQ(view, same);
  EXPECT_EQ(text.size(), same.size());
  EXPECT_FALSE(text.empty());
}

TEST(SharedText, CopiesHaveOneTextAndOutliveTheFirst) {
  SharedText text = std::string(100, 'a');
  const SharedText copy = text;
  const SharedText assigned(copy);
  EXPECT_EQ(&copy.str(), &text.str());
  text = "other";
  EXPECT_EQ(&assigned.str(), &copy.str());
  EXPECT_EQ(copy, std::string(100, 'a'));
  EXPECT_EQ(text, "other");
}

TEST(SharedText, EqualityIsOfContent) {
  const SharedText a = "fp16";
  const SharedText b = std::string("fp16");
  EXPECT_NE(&a.str(), &b.str());
  EXPECT_EQ(a, b);
  EXPECT_EQ(a, std::string_view("fp16"));
  EXPECT_TRUE("fp16" == a);
  EXPECT_FALSE(a == SharedText("fp32"));
  EXPECT_TRUE(a != "fp1");
}

TEST(SharedText, WithoutATextItIsEmpty) {
  const SharedText none;
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(none, "");
  EXPECT_EQ(none, SharedText(""));
  EXPECT_FALSE(none == SharedText("a"));
}

}  // namespace
}  // namespace bdn
