#include "device/pinned_ring.h"

#include <cstring>
#include <vector>

#include "device/device_budget.h"
#include "gtest/gtest.h"
#include "tests/device/fake_driver.h"

namespace bdn {
namespace {

using testing::FakeDriver;
using testing::OpenFake;

constexpr size_t kBlock = PinnedRing::kBlockBytes;

std::vector<std::byte> Bytes(size_t n) {
  std::vector<std::byte> bytes(n);
  // No two blocks are alike.
  for (size_t i = 0; i < n; ++i)
    bytes[i] = static_cast<std::byte>((i * 2654435761u >> 13) + i / kBlock);
  return bytes;
}

TEST(PinnedRing, CopiesWhatIsLongerThanItsBlocks) {
  const auto device = OpenFake().value();
  PinnedRing ring(device.get());
  const DeviceStream stream = device->MakeStream().value();
  for (const size_t n : {size_t{0}, size_t{1}, kBlock, kBlock + 1, 5 * kBlock + 17}) {
    const DeviceMemory memory = DeviceMemory::Make(*device, n + 1).value();
    const std::vector<std::byte> sent = Bytes(n);
    std::vector<std::byte> got(n);
    ASSERT_TRUE(ring.CopyToDevice(stream, sent, memory.get()).ok());
    ASSERT_TRUE(ring.CopyToHost(stream, memory.get(), got).ok());
    EXPECT_TRUE(got == sent) << n;
  }
  device->FreeStream(stream);
}

TEST(PinnedRing, ComesAfterWhatIsInTheStreamAndSpinsNowhere) {
  FakeDriver driver;
  const auto device = OpenFake().value();
  PinnedRing ring(device.get());
  const DeviceStream stream = device->MakeStream().value();
  const size_t n = 3 * kBlock;
  const DeviceMemory memory = DeviceMemory::Make(*device, n).value();
  std::vector<std::byte> got(n, std::byte{1});
  driver.ResetCounts();
  ASSERT_TRUE(ring.CopyToDevice(stream, Bytes(n), memory.get()).ok());
  ASSERT_TRUE(device->Zero(stream, memory.get(), n).ok());
  ASSERT_TRUE(ring.CopyToHost(stream, memory.get(), got).ok());
  EXPECT_TRUE(got == std::vector<std::byte>(n));
  EXPECT_EQ(driver.counts().stream_synchronizations, 0);
  EXPECT_EQ(driver.counts().pageable_copies, 0);
  device->FreeStream(stream);
}

// Slowly, and with the same bytes, as without a gradient's copy there is no training at all.
TEST(PinnedRing, GoesThroughOrdinaryMemoryWhereNoneCanBePinned) {
  for (const long pinned : {0, 1}) {
    FakeDriver driver;
    const auto device = OpenFake().value();
    std::vector<absl::Status> told;
    PinnedRing ring(device.get(), [&](const absl::Status& why) { told.push_back(why); });
    const DeviceStream stream = device->MakeStream().value();
    const size_t n = 5 * kBlock + 17;
    const DeviceMemory memory = DeviceMemory::Make(*device, n).value();
    const std::vector<std::byte> sent = Bytes(n);
    std::vector<std::byte> got(n);
    driver.Fail(FakeDriver::kPinnedAllocations, pinned, FakeDriver::kForever);
    ASSERT_TRUE(ring.CopyToDevice(stream, sent, memory.get()).ok());
    ASSERT_TRUE(ring.CopyToHost(stream, memory.get(), got).ok());
    EXPECT_TRUE(got == sent) << pinned;
    ASSERT_EQ(told.size(), 1u);
    EXPECT_TRUE(absl::IsResourceExhausted(told[0])) << told[0];
    device->FreeStream(stream);
  }
}

}  // namespace
}  // namespace bdn
