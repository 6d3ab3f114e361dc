// The device that NVIDIA's driver makes, with fakes in its place (fake_cuda.cc): what is said where
// something is wrong with the driver, and that what is right is used rightly.

#include "device/cuda_device.h"

#include <dlfcn.h>

#include <cstring>
#include <string>
#include <vector>

#include "device/device_budget.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bdn {
namespace {

using testing::HasSubstr;

// Stand for the kernels, as a fat binary and as a text; fakes look at the first byte alone.
const std::byte kImage[64] = {};
const std::byte kText[64] = {std::byte{'/'}};

CudaOptions With(const std::string& library) {
  return {.library = library, .image = kImage, .image_version = 13000, .text = {}};
}
CudaOptions WithText(const std::string& library) {
  CudaOptions options = With(library);
  options.text = kText;
  options.text_version = 11000;
  return options;
}
std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

TEST(CudaDevice, SaysThatThereIsNoDriver) {
  const auto device = CudaDevice::Open(With("libcuda-that-nobody-has.so.1"));
  EXPECT_EQ(device.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(MessageOf(device.status()), HasSubstr("no NVIDIA driver on this machine"));
  EXPECT_THAT(MessageOf(device.status()), HasSubstr("libcuda-that-nobody-has.so.1"));
}

TEST(CudaDevice, SaysWhatTheDriverLacks) {
  const auto device = CudaDevice::Open(With(BDN_FAKE_CUDA_DIR "/libfake_cuda_lacking.so"));
  EXPECT_EQ(device.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(MessageOf(device.status()), HasSubstr("lacks cuLaunchKernel"));
}

TEST(CudaDevice, SaysThatTheDriverIsTooOldAndWhatItTakes) {
  const auto device = CudaDevice::Open(With(BDN_FAKE_CUDA_DIR "/libfake_cuda_old.so"));
  ASSERT_TRUE(device.ok()) << device.status();
  const auto too_old = absl::FailedPreconditionError(
      "NVIDIA's driver is of CUDA 12.4, these kernels need that of 13.0 or newer: update it");
  EXPECT_EQ((*device)->kernels(), too_old);
  // Copies need no kernels.
  EXPECT_EQ((*device)->LaunchKernel({}, device_kernels::KernelId{}, 1, nullptr), too_old);
  const absl::StatusOr<DeviceStream> stream = (*device)->MakeStream();
  ASSERT_TRUE(stream.ok()) << stream.status();
  (*device)->FreeStream(*stream);
}

TEST(CudaDevice, TakesTheTextOfKernelsWhereTheDriverIsOlderThanTheToolkit) {
  const auto device = CudaDevice::Open(WithText(BDN_FAKE_CUDA_DIR "/libfake_cuda_old.so"));
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_TRUE((*device)->kernels().ok()) << (*device)->kernels();
}

TEST(CudaDevice, TakesTheTextOfKernelsWhereTheImageHasNoneForTheGpu) {
  constexpr const char* kLibrary = BDN_FAKE_CUDA_DIR "/libfake_cuda.so";
  void* const library = dlopen(kLibrary, RTLD_NOW);
  ASSERT_NE(library, nullptr);
  const auto refuse = reinterpret_cast<void (*)(int)>(dlsym(library, "FakeRefuseImages"));
  refuse(1);
  const auto with = CudaDevice::Open(WithText(kLibrary));
  const auto without = CudaDevice::Open(With(kLibrary));
  refuse(0);
  ASSERT_TRUE(with.ok() && without.ok());
  EXPECT_TRUE((*with)->kernels().ok()) << (*with)->kernels();
  EXPECT_THAT(MessageOf((*without)->kernels()), HasSubstr("cuModuleLoadData of the kernels"));
  dlclose(library);
}

TEST(CudaDevice, DescribesAllWithoutAContext) {
  EXPECT_EQ(CudaDevice::DescribeAll(With(BDN_FAKE_CUDA_DIR "/libfake_cuda.so")).value(),
            "GPU: Fake GPU (cuda:0), compute capability 9.0, driver of CUDA 13.0, encodes: yes\n");
  EXPECT_THAT(CudaDevice::DescribeAll(With(BDN_FAKE_CUDA_DIR "/libfake_cuda_old.so")).value(),
              HasSubstr("driver of CUDA 12.4, encodes: no: NVIDIA's driver is of CUDA 12.4"));
  CudaOptions of_newer = With(BDN_FAKE_CUDA_DIR "/libfake_cuda.so");
  of_newer.least_capability = 100;
  EXPECT_THAT(CudaDevice::DescribeAll(of_newer).value(),
              HasSubstr("9.0, driver of CUDA 13.0, encodes: no: kernels are for GPUs of compute "
                        "capability 10.0 and more"));
  EXPECT_EQ(
      CudaDevice::DescribeAll(With(BDN_FAKE_CUDA_DIR "/libfake_cuda_no_gpu.so")).status(),
      absl::NotFoundError("cuInit: CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)"));
}

TEST(CudaDevice, SaysThatThereIsNoGpu) {
  const auto device = CudaDevice::Open(With(BDN_FAKE_CUDA_DIR "/libfake_cuda_no_gpu.so"));
  EXPECT_EQ(
      device.status(),
      absl::NotFoundError("cuInit: CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)"));
}

TEST(CudaDevice, SaysWhichGpuIsNotThere) {
  CudaOptions options = With(BDN_FAKE_CUDA_DIR "/libfake_cuda.so");
  options.ordinal = 3;
  EXPECT_EQ(CudaDevice::Open(options).status(),
            absl::NotFoundError(
                "cuDeviceGet of GPU 3: CUDA_ERROR_INVALID_DEVICE (invalid device ordinal)"));
}

TEST(CudaDevice, SaysThatItWasBuiltWithoutKernels) {
  CudaOptions options = With(BDN_FAKE_CUDA_DIR "/libfake_cuda.so");
  options.image = {};
  const auto device = CudaDevice::Open(options);
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ((*device)->kernels().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(MessageOf((*device)->kernels()), HasSubstr("BANDONEON_CUDA=ON"));
}

TEST(CudaDevice, SaysThatMemoryIsOutAndHowMuchWasWanted) {
  const auto device = CudaDevice::Open(With(BDN_FAKE_CUDA_DIR "/libfake_cuda_small.so"));
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ((*device)->name(), "Fake GPU (cuda:0)");
  EXPECT_EQ((*device)->Allocate(5000).status(),
            absl::ResourceExhaustedError("cuMemAlloc of 5000 bytes on Fake GPU (cuda:0): "
                                         "CUDA_ERROR_OUT_OF_MEMORY (out of memory)"));
  const auto memory = (*device)->Allocate(4000);
  ASSERT_TRUE(memory.ok()) << memory.status();
  (*device)->Free(*memory);
}

TEST(CudaDevice, NamesTheCallThatFailed) {
  const auto device = CudaDevice::Open(With(BDN_FAKE_CUDA_DIR "/libfake_cuda.so"));
  ASSERT_TRUE(device.ok()) << device.status();
  int host = 0;
  EXPECT_EQ((*device)->CopyToDevice({}, std::as_bytes(std::span(&host, 1)), &host),
            absl::InternalError(
                "cuMemcpyHtoDAsync of 4 bytes: CUDA_ERROR_INVALID_VALUE (invalid argument)"));
}

TEST(CudaDevice, CopiesInTheOrderOfTheStream) {
  const auto opened = CudaDevice::Open(With(BDN_FAKE_CUDA_DIR "/libfake_cuda.so"));
  ASSERT_TRUE(opened.ok()) << opened.status();
  CudaDevice& device = **opened;
  const DeviceStream stream = device.MakeStream().value();
  const DeviceEvent event = device.MakeEvent().value();
  void* const library = dlopen(BDN_FAKE_CUDA_DIR "/libfake_cuda.so", RTLD_NOW);
  ASSERT_NE(library, nullptr);
  const auto hold = reinterpret_cast<void (*)(int)>(dlsym(library, "FakeHold"));
  const std::vector<std::byte> sent(100, std::byte{7});
  std::vector<std::byte> got(100);
  {
    const DeviceMemory memory = DeviceMemory::Make(device, sent.size()).value();
    const DeviceMemory other = DeviceMemory::Make(device, sent.size()).value();
    ASSERT_TRUE(device.CopyToDevice(stream, sent, memory.get()).ok());
    ASSERT_TRUE(device.CopyOnDevice(stream, memory.get(), other.get(), sent.size()).ok());
    ASSERT_TRUE(device.CopyToHost(stream, other.get(), got).ok());
    hold(1);
    ASSERT_TRUE(device.Record(event, stream).ok());
    ASSERT_TRUE(device.WaitFor(event, {}).ok());
    EXPECT_EQ(*device.IsDone(event), false);
    hold(0);
    ASSERT_TRUE(device.Await(event).ok());
    EXPECT_EQ(*device.IsDone(event), true);
    EXPECT_TRUE(device.Synchronize(stream).ok());
    EXPECT_EQ(*device.IsCapturing(stream), false);
  }
  EXPECT_EQ(got, sent);
  device.FreeEvent(event);
  device.FreeStream(stream);
  dlclose(library);
}

TEST(CudaDevice, LeavesTheContextAndTheMemoryAsItFoundThem) {
  constexpr const char* kLibrary = BDN_FAKE_CUDA_DIR "/libfake_cuda.so";
  {
    const auto device = CudaDevice::Open(With(kLibrary));
    ASSERT_TRUE(device.ok()) << device.status();
    const auto memory = DeviceMemory::Make(**device, 1000);
    const auto pinned = (*device)->AllocatePinned(10);
    (*device)->FreePinned(*pinned);
  }
  void* const library = dlopen(kLibrary, RTLD_NOW);
  ASSERT_NE(library, nullptr);
  EXPECT_EQ(reinterpret_cast<int (*)()>(dlsym(library, "FakeContexts"))(), 0);
  EXPECT_EQ(reinterpret_cast<size_t (*)()>(dlsym(library, "FakeHeldBytes"))(), 0u);
  dlclose(library);
}

}  // namespace
}  // namespace bdn
