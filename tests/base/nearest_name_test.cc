#include "common/base/nearest_name.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace bdn {
namespace {

const std::vector<std::string> kNames = {"onebit", "none", "topk"};

TEST(NearestName, FindsAMistypedName) {
  EXPECT_EQ(NearestName("onebti", kNames), "onebit");
  EXPECT_EQ(NearestName("tokp", kNames), "topk");
  EXPECT_EQ(NearestName("none", kNames), "none");
}

TEST(NearestName, FindsNothingWhereNothingIsNear) {
  EXPECT_EQ(NearestName("quantised", kNames), "");
  EXPECT_EQ(NearestName("onebit", {}), "");
}

}  // namespace
}  // namespace bdn
