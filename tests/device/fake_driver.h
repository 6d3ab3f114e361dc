#ifndef BANDONEON_TESTS_DEVICE_FAKE_DRIVER_H_
#define BANDONEON_TESTS_DEVICE_FAKE_DRIVER_H_

#include <dlfcn.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "device/cuda_device.h"
#include "gtest/gtest.h"

// The interface of tests to the fake of NVIDIA's driver (fake_cuda.cc), and devices of it. Where
// BDN_TEST_REAL_GPU is set, devices are those of this machine's driver instead.

namespace bdn::testing {

inline constexpr const char* kFakeLibrary = BDN_FAKE_CUDA_DIR "/libfake_cuda.so";
inline constexpr const char* kSmallFakeLibrary = BDN_FAKE_CUDA_DIR "/libfake_cuda_small.so";

inline bool IsReal() { return std::getenv("BDN_TEST_REAL_GPU") != nullptr; }
#define BDN_NEEDS_FAKE() \
  if (IsReal()) GTEST_SKIP() << "a GPU cannot be made to do that"

// The driver of all devices of a test. Not thread-safe.
class FakeDriver {
 public:
  explicit FakeDriver(const char* library = kFakeLibrary)
      : library_(IsReal() ? nullptr : dlopen(library, RTLD_NOW)) {}
  // Expects that all was given back.
  ~FakeDriver() {
    if (IsReal()) return;
    Hold(false);
    Capture(false);
    Mend();
    SayThatMemoryIs(0, 0);
    EXPECT_EQ(Function<int()>("FakeContexts")(), 0);
    EXPECT_EQ(Function<size_t()>("FakeHeldBytes")(), 0u);
    dlclose(library_);
  }
  FakeDriver(const FakeDriver&) = delete;
  FakeDriver& operator=(const FakeDriver&) = delete;

  void Hold(bool on) { Function<void(int)>("FakeHold")(on); }
  // Returns how many operations of a stream are not done yet.
  size_t Pending(DeviceStream stream) {
    return Function<size_t(void*)>("FakePending")(stream.handle);
  }
  void Capture(bool on) { Function<void(int)>("FakeCapture")(on); }
  void Seed(unsigned seed) { Function<void(unsigned)>("FakeSeed")(seed); }
  // The same as FakeCall of the fake.
  enum Call : int { kAllocations, kPinnedAllocations, kLaunches, kCopies, kKernelRuns, kCreations };
  // Lets some calls fail, or all from now on, with invalid values or as if memory was exhausted.
  void Fail(Call call, long first, long count, int error = kOutOfMemory) {
    Function<void(int, long, long, int)>("FakeFail")(call, first, count, error);
  }
  void FailCopies(bool on) { Fail(kCopies, 0, on ? kForever : 0, kInvalidValue); }
  // Lets nothing fail from now on.
  void Mend() { Function<void()>("FakeMend")(); }
  struct Counts {
    long calls[6];
    long stream_synchronizations, pageable_copies, frees, failed;
  };
  Counts counts() {
    Counts counts;
    Function<void(Counts*)>("FakeCounts")(&counts);
    return counts;
  }
  void ResetCounts() { Function<void()>("FakeResetCounts")(); }
  void BeginGlobalCapture() { Function<void()>("FakeBeginGlobalCapture")(); }
  // Returns whether nothing has spoilt the capture.
  bool EndGlobalCapture() { return Function<int()>("FakeEndGlobalCapture")() == 0; }
  void SayThatMemoryIs(size_t free, size_t total) {
    Function<void(size_t, size_t)>("FakeMemoryInfo")(free, total);
  }
  static constexpr long kForever = 1L << 40;
  static constexpr int kInvalidValue = 1;
  static constexpr int kOutOfMemory = 2;
  static constexpr int kOperatingSystem = 304;
  static constexpr int kLaunchFailed = 719;

 private:
  template <typename F>
  F* Function(const char* name) {
    return reinterpret_cast<F*>(dlsym(library_, name));
  }
  void* const library_;
};

inline absl::StatusOr<std::unique_ptr<CudaDevice>> OpenFake(
    int ordinal = 0, const std::string& library = kFakeLibrary) {
  if (IsReal()) return CudaDevice::Open({.ordinal = ordinal});
  static const std::byte kImage[1] = {};
  return CudaDevice::Open(
      {.ordinal = ordinal, .library = library, .image = kImage, .image_version = 13000});
}

}  // namespace bdn::testing

#endif  // BANDONEON_TESTS_DEVICE_FAKE_DRIVER_H_
