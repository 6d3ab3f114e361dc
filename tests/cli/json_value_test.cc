#include "cli/json_value.h"

#include <gtest/gtest.h>

#include <string>

namespace bdn::cli {
namespace {

TEST(JsonValue, ReadsWhatTheLibraryWrites) {
  const auto value = ParseJson(
      R"( {"rank": 1, "ok": true, "none": null, "list": [1, -2.5e3, "a\n\"b\u0009"], "in": {"x": 7}} )");
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ((*value)["rank"].number, 1);
  EXPECT_EQ((*value)["ok"].ToText(), "yes");
  EXPECT_EQ((*value)["none"].kind, JsonValue::Kind::kNull);
  EXPECT_EQ((*value)["list"].list.at(1).number, -2500);
  EXPECT_EQ((*value)["list"].list.at(2).text, "a\n\"b\t");
  EXPECT_EQ((*value)["in"]["x"].number, 7);
  EXPECT_EQ((*value)["in"]["y"].ToText(), "-");
}

TEST(JsonValue, ReadsEmptyThings) {
  EXPECT_TRUE(ParseJson("{}")->object.empty());
  EXPECT_TRUE(ParseJson("[ ]")->list.empty());
  EXPECT_EQ(ParseJson("\"\"")->text, "");
}

TEST(JsonValue, RefusesWhatIsCutOrBroken) {
  const std::string whole = R"({"a": [1, "b\\"], "c": true})";
  ASSERT_TRUE(ParseJson(whole).ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(ParseJson(whole.substr(0, size)).ok()) << size;
  }
  for (const char* text :
       {"{} x", "[1,]", "{\"a\" 1}", "nul", "1.2.3", "\"\\u12\"", "\"\\q\"", "'a'"}) {
    EXPECT_FALSE(ParseJson(text).ok()) << text;
  }
}

TEST(JsonValue, RefusesEndlessNesting) {
  EXPECT_TRUE(ParseJson(std::string(20, '[') + std::string(20, ']')).ok());
  EXPECT_FALSE(ParseJson(std::string(100000, '[')).ok());
}

TEST(JsonValue, QuotesSoThatItReadsBack) {
  const std::string text = "a\"b\\c\nd\x01";
  EXPECT_EQ(ParseJson(JsonQuote(text))->text, text);
}

}  // namespace
}  // namespace bdn::cli
