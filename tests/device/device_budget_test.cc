#include "device/device_budget.h"

#include <atomic>
#include <thread>

#include "device/host_device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bdn {
namespace {

using ::testing::HasSubstr;

TEST(DeviceBudget, GivesNoMoreThanItMay) {
  HostDevice device;
  DeviceBudget budget(1000);
  auto first = DeviceMemory::Make(device, 600, &budget);
  ASSERT_TRUE(first.ok());
  const auto second = DeviceMemory::Make(device, 401, &budget);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr("want 401 bytes more of the memory of host, have 600, and may have 1000"));
  EXPECT_EQ(budget.taken(), 600u) << "what was refused is not counted";
  EXPECT_TRUE(DeviceMemory::Make(device, 400, &budget).ok());
  EXPECT_EQ(budget.taken(), 600u) << "it was given back";
  *first = DeviceMemory();
  EXPECT_EQ(budget.taken(), 0u);
}

TEST(DeviceBudget, IsNeverPassedByWhatTwoAskForAtOnce) {
  HostDevice device;
  DeviceBudget budget(1000);
  std::atomic<size_t> most{0};
  const auto ask = [&] {
    for (int i = 0; i < 20000; ++i) {
      const auto memory = DeviceMemory::Make(device, 600, &budget);
      const size_t taken = budget.taken();
      if (taken > 1000) most = taken;
    }
  };
  { const std::jthread one(ask), other(ask); }
  EXPECT_EQ(most, 0u) << "the gauge passed the bound";
  EXPECT_EQ(budget.taken(), 0u);
}

TEST(DeviceBudget, MovesWithItsMemory) {
  HostDevice device;
  DeviceBudget budget(1000);
  DeviceMemory memory = DeviceMemory::Make(device, 100, &budget).value();
  {
    DeviceMemory other = std::move(memory);
    EXPECT_EQ(other.size(), 100u);
    EXPECT_EQ(memory.get(), nullptr);
    memory = DeviceMemory::Make(device, 300, &budget).value();
    EXPECT_EQ(budget.taken(), 400u);
  }
  EXPECT_EQ(budget.taken(), 300u);
}

TEST(DeviceBudget, TakesNothingOfNoBytes) {
  HostDevice device;
  DeviceBudget budget(1);
  EXPECT_EQ(DeviceMemory::Make(device, 0, &budget)->get(), nullptr);
  EXPECT_EQ(DeviceMemory::Make(device, size_t{1} << 62, &budget).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(budget.taken(), 0u);
}

}  // namespace
}  // namespace bdn
