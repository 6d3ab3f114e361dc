// A driver in place of libcuda.so.1, for machines without a GPU. What is put into a stream waits
// until somebody synchronizes or frees, as on a GPU it may; kernels run on the calling thread. Its
// build says what is wrong with it: BDN_FAKE_VERSION, BDN_FAKE_MEMORY (bytes it has),
// BDN_FAKE_NO_GPU, BDN_FAKE_LACKS_LAUNCH. Thread-safe. The Fake... functions at the end are for tests.

#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "device/host_launcher.h"
#include "device/kernels/kernel_list.h"

#define BDN_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using bdn::device_kernels::KernelId;

constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kNoDevice = 100;
constexpr int kInvalidDevice = 101;
constexpr int kInvalidContext = 201;
constexpr int kNotFound = 500;
constexpr int kNotReady = 600;

struct Kernel {
  const char* name;
  KernelId id;
  size_t arguments_bytes;
};
#define BDN_FAKE_KERNEL(Name) \
  {"bdn_" #Name, KernelId::k##Name, sizeof(bdn::device_kernels::Name::Arguments)},
const Kernel kKernels[] = {BDN_FOR_EACH_KERNEL(BDN_FAKE_KERNEL)};

struct State {
  std::mutex mu;
  std::condition_variable changed;
  int context = 0;         // its address is the context
  int contexts_left = 0;   // that were pushed and not popped, of all threads
  bool is_held = false;    // no work is done
  bool fails = false;      // copies
  bool captures = false;   // every stream
  bool takes_all = false;  // host memory passes for the device's
  std::map<uint64_t, size_t> memory;
  size_t held = 0;
  std::deque<std::function<void()>> work;

  void Finish(std::unique_lock<std::mutex>& lock) {
    changed.wait(lock, [this] { return !is_held; });
    for (; !work.empty(); work.pop_front()) work.front()();
  }
};
State& state() {
  static State* const state = new State();
  return *state;
}
thread_local int contexts = 0;  // that this thread has pushed

using Lock = std::unique_lock<std::mutex>;

// Whether [at, at + bytes) is memory of the device.
bool IsOurs(uint64_t at, size_t bytes) {
  if (state().takes_all) return true;
  auto found = state().memory.upper_bound(at);
  if (found == state().memory.begin()) return false;
  --found;
  return at + bytes <= found->first + found->second;
}

int InContext() { return contexts > 0 ? kSuccess : kInvalidContext; }

}  // namespace

BDN_EXPORT int cuInit(unsigned /*flags*/) {
#ifdef BDN_FAKE_NO_GPU
  return kNoDevice;
#else
  return kSuccess;
#endif
}
BDN_EXPORT int cuDriverGetVersion(int* version) {
  *version = BDN_FAKE_VERSION;
  return kSuccess;
}
BDN_EXPORT int cuGetErrorName(int error, const char** name) {
  if (error == kOutOfMemory) *name = "CUDA_ERROR_OUT_OF_MEMORY";
  if (error == kNoDevice) *name = "CUDA_ERROR_NO_DEVICE";
  if (error == kInvalidDevice) *name = "CUDA_ERROR_INVALID_DEVICE";
  if (error == kInvalidValue) *name = "CUDA_ERROR_INVALID_VALUE";
  return *name == nullptr ? kInvalidValue : kSuccess;
}
BDN_EXPORT int cuGetErrorString(int error, const char** text) {
  if (error == kOutOfMemory) *text = "out of memory";
  if (error == kNoDevice) *text = "no CUDA-capable device is detected";
  if (error == kInvalidDevice) *text = "invalid device ordinal";
  if (error == kInvalidValue) *text = "invalid argument";
  return *text == nullptr ? kInvalidValue : kSuccess;
}
BDN_EXPORT int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal + 40;  // is not the ordinal
  return ordinal == 0 ? kSuccess : kInvalidDevice;
}
BDN_EXPORT int cuDeviceGetName(char* name, int bytes, int /*device*/) {
  std::strncpy(name, "Fake GPU", static_cast<size_t>(bytes));
  return kSuccess;
}
BDN_EXPORT int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = &state().context;
  return device == 40 ? kSuccess : kInvalidDevice;
}
BDN_EXPORT int cuDevicePrimaryCtxRelease_v2(int device) {
  return device == 40 ? kSuccess : kInvalidDevice;
}
BDN_EXPORT int cuCtxPushCurrent_v2(void* context) {
  if (context != &state().context) return kInvalidContext;
  const Lock lock(state().mu);
  ++contexts;
  ++state().contexts_left;
  return kSuccess;
}
BDN_EXPORT int cuCtxPopCurrent_v2(void** context) {
  *context = &state().context;
  const Lock lock(state().mu);
  --contexts;
  --state().contexts_left;
  return kSuccess;
}

BDN_EXPORT int cuModuleLoadData(void** module, const void* image) {
  *module = const_cast<void*>(image);
  return InContext();
}
BDN_EXPORT int cuModuleUnload(void* /*module*/) { return InContext(); }
BDN_EXPORT int cuModuleGetFunction(void** function, void* /*module*/, const char* name) {
  for (const Kernel& kernel : kKernels) {
    if (std::string(name) != kernel.name) continue;
    *function = const_cast<Kernel*>(&kernel);
    return InContext();
  }
  return kNotFound;
}

BDN_EXPORT int cuMemAlloc_v2(uint64_t* memory, size_t bytes) {
  if (bytes == 0) return kInvalidValue;
  const Lock lock(state().mu);
  if (bytes > BDN_FAKE_MEMORY - state().held) return kOutOfMemory;
  // Other bytes each time, as nothing may rest on what is there.
  void* const block = std::malloc(bytes);
  std::memset(block, 0xa7, bytes);
  *memory = reinterpret_cast<uintptr_t>(block);
  state().memory[*memory] = bytes;
  state().held += bytes;
  return InContext();
}
BDN_EXPORT int cuMemFree_v2(uint64_t memory) {
  Lock lock(state().mu);
  state().Finish(lock);
  const auto found = state().memory.find(memory);
  if (found == state().memory.end()) return kInvalidValue;
  state().held -= found->second;
  state().memory.erase(found);
  std::free(reinterpret_cast<void*>(memory));
  return InContext();
}
BDN_EXPORT int cuMemHostAlloc(void** memory, size_t bytes, unsigned /*flags*/) {
  *memory = std::malloc(bytes);
  return InContext();
}
BDN_EXPORT int cuMemFreeHost(void* memory) {
  std::free(memory);
  return InContext();
}
BDN_EXPORT int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void* /*stream*/) {
  const Lock lock(state().mu);
  if (state().fails || !IsOurs(to, bytes)) return kInvalidValue;
  state().work.emplace_back([=] { std::memcpy(reinterpret_cast<void*>(to), from, bytes); });
  return InContext();
}
BDN_EXPORT int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void* /*stream*/) {
  const Lock lock(state().mu);
  if (state().fails || !IsOurs(from, bytes)) return kInvalidValue;
  state().work.emplace_back([=] { std::memcpy(to, reinterpret_cast<void*>(from), bytes); });
  return InContext();
}
BDN_EXPORT int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void* /*stream*/) {
  const Lock lock(state().mu);
  if (state().fails || !IsOurs(from, bytes) || !IsOurs(to, bytes)) return kInvalidValue;
  state().work.emplace_back(
      [=] { std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes); });
  return InContext();
}
// All streams are one.
BDN_EXPORT int cuStreamCreate(void** stream, unsigned /*flags*/) {
  *stream = &state().work;
  return InContext();
}
BDN_EXPORT int cuStreamDestroy_v2(void* /*stream*/) { return InContext(); }
BDN_EXPORT int cuStreamSynchronize(void* /*stream*/) {
  Lock lock(state().mu);
  state().Finish(lock);
  return InContext();
}
BDN_EXPORT int cuStreamIsCapturing(void* /*stream*/, int* capture) {
  const Lock lock(state().mu);
  *capture = state().captures ? 1 : 0;
  return InContext();
}
BDN_EXPORT int cuStreamWaitEvent(void* /*stream*/, void* /*event*/, unsigned /*flags*/) {
  return InContext();
}
// An event is whether it is done.
BDN_EXPORT int cuEventCreate(void** event, unsigned /*flags*/) {
  *event = new bool(true);
  return InContext();
}
BDN_EXPORT int cuEventDestroy_v2(void* event) {
  Lock lock(state().mu);
  state().Finish(lock);
  delete static_cast<bool*>(event);
  return InContext();
}
BDN_EXPORT int cuEventRecord(void* event, void* /*stream*/) {
  const Lock lock(state().mu);
  *static_cast<bool*>(event) = false;
  state().work.emplace_back([=] { *static_cast<bool*>(event) = true; });
  return InContext();
}
BDN_EXPORT int cuEventQuery(void* event) {
  const Lock lock(state().mu);
  return *static_cast<bool*>(event) ? InContext() : kNotReady;
}

BDN_EXPORT int cuEventSynchronize(void* event) {
  Lock lock(state().mu);
  if (!*static_cast<bool*>(event)) state().Finish(lock);
  return InContext();
}

#ifndef BDN_FAKE_LACKS_LAUNCH
BDN_EXPORT int cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                              unsigned block_x, unsigned block_y, unsigned block_z,
                              unsigned shared_bytes, void* /*stream*/, void** parameters,
                              void** extra) {
  if (grid_x == 0 || block_x == 0 || block_x > bdn::device_kernels::kMostThreads ||
      grid_y * grid_z * block_y * block_z != 1 || shared_bytes != 0 || extra != nullptr) {
    return kInvalidValue;
  }
  const Kernel& kernel = *static_cast<const Kernel*>(function);
  std::vector<std::byte> arguments(kernel.arguments_bytes);
  std::memcpy(arguments.data(), parameters[0], arguments.size());
  const Lock lock(state().mu);
  state().work.emplace_back([=] {
    bdn::LaunchOnHost(kernel.id, grid_x, block_x, bdn::LaunchOrder::kForward, arguments.data());
  });
  return InContext();
}
#endif

// How many contexts the driver's callers left on the stack.
BDN_EXPORT int FakeContexts() {
  const Lock lock(state().mu);
  return state().contexts_left;
}
// How many bytes of memory nobody freed.
BDN_EXPORT size_t FakeHeldBytes() {
  const Lock lock(state().mu);
  return state().held;
}
// While it is held no work is done, as where a stream has not come to it yet.
BDN_EXPORT void FakeHold(int is_held) {
  const Lock lock(state().mu);
  state().is_held = is_held != 0;
  state().changed.notify_all();
}
BDN_EXPORT void FakeFinish() {
  Lock lock(state().mu);
  state().Finish(lock);
}
BDN_EXPORT void FakeFailCopies(int fails) {
  const Lock lock(state().mu);
  state().fails = fails != 0;
}
BDN_EXPORT void FakeCapture(int captures) {
  const Lock lock(state().mu);
  state().captures = captures != 0;
}
// Any memory passes for the device's from now on.
BDN_EXPORT void FakeTakeAllMemory() {
  const Lock lock(state().mu);
  state().takes_all = true;
}
