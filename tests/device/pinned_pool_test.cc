#include "device/pinned_pool.h"

#include "device/host_device.h"
#include "gtest/gtest.h"

namespace bdn {
namespace {

constexpr size_t kKiB = 1024;

TEST(PinnedPool, GivesWhatWasGivenBackAgain) {
  HostDevice host;
  PinnedPool pool(host, 64 * kKiB);
  const std::byte* first = pool.Take(5000)->bytes().data();
  const auto second = pool.Take(8 * kKiB);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->bytes().data(), first);
  EXPECT_EQ(second->bytes().size(), 8 * kKiB);
  EXPECT_EQ(pool.held_bytes(), 8 * kKiB);
}

TEST(PinnedPool, RefusesMoreThanItsBoundAndSaysWhatIsInUse) {
  HostDevice host;
  PinnedPool pool(host, 16 * kKiB);
  const auto held = pool.Take(16 * kKiB);
  ASSERT_TRUE(held.ok());
  EXPECT_EQ(pool.Take(1).status(),
            absl::ResourceExhaustedError(
                "4096 bytes of pinned memory wanted, 16384 of the pool's 16384 are in use"));
  EXPECT_EQ(pool.Take(32 * kKiB).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(PinnedPool, FreesWhatNobodyHasForAnotherSize) {
  HostDevice host;
  PinnedPool pool(host, 16 * kKiB);
  { ASSERT_TRUE(pool.Take(16 * kKiB).ok()); }
  EXPECT_EQ(pool.held_bytes(), 16 * kKiB);
  const auto small = pool.Take(kKiB);
  EXPECT_TRUE(small.ok()) << small.status();
  EXPECT_EQ(pool.held_bytes(), 4 * kKiB);
}

}  // namespace
}  // namespace bdn
