#include "common/base/byte_text.h"

#include "gtest/gtest.h"

namespace bdn {
namespace {

TEST(ByteText, HasTheUnitThatLeavesFewDigits) {
  EXPECT_EQ(ByteText(0), "0 B");
  EXPECT_EQ(ByteText(999), "999 B");
  EXPECT_EQ(ByteText(1500), "1.5 kB");
  EXPECT_EQ(ByteText(86'688'012), "86.7 MB");
  EXPECT_EQ(ByteText(2e18), "2000.0 PB");
}

}  // namespace
}  // namespace bdn
