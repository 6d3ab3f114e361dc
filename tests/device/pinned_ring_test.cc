#include "device/pinned_ring.h"

#include <dlfcn.h>

#include <cstring>
#include <vector>

#include "device/cuda_device.h"
#include "device/device_budget.h"
#include "gtest/gtest.h"

namespace bdn {
namespace {

constexpr const char* kLibrary = BDN_FAKE_CUDA_DIR "/libfake_cuda.so";
constexpr size_t kBlock = PinnedRing::kBlockBytes;

std::unique_ptr<CudaDevice> OpenFake() {
  static const std::byte kImage[1] = {};
  return CudaDevice::Open({.library = kLibrary, .image = kImage, .image_version = 13000}).value();
}

std::vector<std::byte> Bytes(size_t n) {
  std::vector<std::byte> bytes(n);
  // No two blocks are alike.
  for (size_t i = 0; i < n; ++i)
    bytes[i] = static_cast<std::byte>((i * 2654435761u >> 13) + i / kBlock);
  return bytes;
}

TEST(PinnedRing, CopiesWhatIsLongerThanItsBlocks) {
  const auto device = OpenFake();
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
  const auto device = OpenFake();
  void* const library = dlopen(kLibrary, RTLD_NOW);
  ASSERT_NE(library, nullptr);
  const auto reset = reinterpret_cast<void (*)()>(dlsym(library, "FakeResetCounts"));
  const auto read = reinterpret_cast<void (*)(long*)>(dlsym(library, "FakeCounts"));
  {
    PinnedRing ring(device.get());
    const DeviceStream stream = device->MakeStream().value();
    const size_t n = 3 * kBlock;
    const DeviceMemory memory = DeviceMemory::Make(*device, n).value();
    std::vector<std::byte> got(n, std::byte{1});
    reset();
    ASSERT_TRUE(ring.CopyToDevice(stream, Bytes(n), memory.get()).ok());
    ASSERT_TRUE(device->Zero(stream, memory.get(), n).ok());
    ASSERT_TRUE(ring.CopyToHost(stream, memory.get(), got).ok());
    EXPECT_TRUE(got == std::vector<std::byte>(n));
    long counts[9];
    read(counts);
    EXPECT_EQ(counts[5], 0) << "streams that were synchronized";
    EXPECT_EQ(counts[6], 0) << "copies of memory that is not pinned";
    device->FreeStream(stream);
  }
  dlclose(library);
}

}  // namespace
}  // namespace bdn
