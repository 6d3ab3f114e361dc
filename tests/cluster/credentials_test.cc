#include "common/cluster/credentials.h"

#include <gtest/gtest.h>

namespace bdn {
namespace {

TEST(Credentials, AdmitWhoShowsTheTokenAndNobodyElse) {
  const Credentials credentials("open sesame");
  EXPECT_TRUE(credentials.Admits("open sesame"));
  for (const char* token : {"", "open", "open sesamf", "Open sesame", "open sesame "}) {
    EXPECT_FALSE(credentials.Admits(token)) << token;
  }
}

TEST(Credentials, WithoutATokenAdmitEverybody) {
  EXPECT_TRUE(Credentials().Admits(""));
  EXPECT_TRUE(Credentials().Admits("whatever"));
}

}  // namespace
}  // namespace bdn
