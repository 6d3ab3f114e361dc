// A driver in place of libcuda.so.1, for machines without a GPU, as strict as a GPU may be. Every
// stream is a queue of its own. Operations of a stream are done later, in a random order that
// events allow: by the threads that wait for something, and now and then by a thread that adds one.
// So a missing order between two streams, or between a stream and the host, shows as wrong bytes.
// Kernels run on the host.
//
// Pinned memory is read and written when its copy is done, and other memory of the host at the
// call, as the driver promises. The default stream has no order with other streams, as those are
// made not to have one. Memory that was freed is overwritten. After a kernel that failed every call
// fails.
//
// The build says which driver it is: BDN_FAKE_VERSION, BDN_FAKE_MEMORY (the bytes that it has),
// BDN_FAKE_NO_GPU, BDN_FAKE_LACKS_LAUNCH. Thread-safe. The functions Fake... at the end are for
// tests.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <random>
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
constexpr int kNoBinaryForGpu = 209;
constexpr int kInvalidDevice = 101;
constexpr int kInvalidContext = 201;
constexpr int kNotFound = 500;
constexpr int kNotReady = 600;
constexpr int kIllegalAddress = 700;
constexpr int kCaptureUnsupported = 900;
constexpr int kCaptureInvalidated = 901;

constexpr int kModeGlobal = 0;
constexpr int kModeRelaxed = 2;

struct Kernel {
  const char* name;
  KernelId id;
  size_t arguments_bytes;
};
#define BDN_FAKE_KERNEL(Name) \
  {"bdn_" #Name, KernelId::k##Name, sizeof(bdn::device_kernels::Name::Arguments)},
const Kernel kKernels[] = {BDN_FOR_EACH_KERNEL(BDN_FAKE_KERNEL)};

// A position in a stream: whether it was passed.
struct Mark {
  bool is_passed = false;
};
using MarkPtr = std::shared_ptr<Mark>;

// An operation of a stream: a function, a mark to wait for before it, a mark that is passed after
// it.
struct Work {
  std::function<void()> run;
  MarkPtr after;
  MarkPtr passes;
};
struct Event {
  MarkPtr last = std::make_shared<Mark>(Mark{true});  // of its last record; none was made yet
};

// Calls that fail on demand: `count` of them after the next `first`.
struct Failure {
  long first = 0;
  long count = 0;
  int error = 0;
  // The error of this call.
  int Take() {
    if (count == 0) return kSuccess;
    if (first > 0) {
      --first;
      return kSuccess;
    }
    --count;
    return error;
  }
};

enum FakeCall : int {
  kAllocations,
  kPinnedAllocations,
  kLaunches,
  kCopies,
  kKernelRuns,
  kCreations,  // of streams and events
  kNumCalls
};

struct Counts {
  long calls[kNumCalls] = {};
  long stream_synchronizations = 0;
  long pageable_copies = 0;
  long frees = 0;
  long failed = 0;
};

struct State {
  std::mutex mu;
  std::condition_variable changed;
  std::mt19937 random{20260101};
  int context = 0;              // its address is the context
  int contexts_left = 0;        // that were pushed and not popped, of all threads
  bool is_held = false;         // no work is done
  bool captures = false;        // every stream, as cuStreamIsCapturing has it
  bool takes_all = false;       // host memory passes for the device's
  bool is_broken = false;       // a kernel has failed
  bool refuses_images = false;  // which are no text, and so begin with no comment
  // A capture of mode "global" that goes on somewhere, and whether an unsafe call has spoilt it.
  bool has_capture = false;
  bool is_capture_spoilt = false;
  size_t free_reported = 0;  // by cuMemGetInfo, if it was set
  size_t total_reported = 0;
  std::map<uint64_t, size_t> memory;
  std::map<uint64_t, size_t> pinned;
  size_t held = 0;
  std::map<void*, std::deque<Work>> streams;
  Failure failures[kNumCalls];
  Counts counts;

  int Fail(FakeCall call) {
    ++counts.calls[call];
    const int error = failures[call].Take();
    if (error != kSuccess) ++counts.failed;
    return error;
  }
  void Put(void* stream, Work work) {
    streams[stream].push_back(std::move(work));
    // A device may be quick, too.
    while (!is_held && random() % 4 == 0 && RunOne()) continue;
  }
  // Does the first work of a stream that is not waiting for another. False: there is none.
  bool RunOne() {
    std::vector<std::deque<Work>*> ready;
    for (auto& [stream, queue] : streams) {
      if (queue.empty()) continue;
      const MarkPtr& after = queue.front().after;
      if (after == nullptr || after->is_passed) ready.push_back(&queue);
    }
    if (ready.empty()) return false;
    std::deque<Work>& queue = *ready[random() % ready.size()];
    const Work work = std::move(queue.front());
    queue.pop_front();
    if (work.run != nullptr && !is_broken) work.run();
    if (work.passes != nullptr) work.passes->is_passed = true;
    return true;
  }
  void RunUntilPassed(std::unique_lock<std::mutex>& lock, const MarkPtr& mark) {
    while (!mark->is_passed) {
      changed.wait(lock, [this] { return !is_held; });
      if (!mark->is_passed && !RunOne()) std::abort();  // streams wait for each other
    }
  }
  void Drain(std::unique_lock<std::mutex>& lock, void* stream) {
    const auto end = std::make_shared<Mark>();
    streams[stream].push_back({.passes = end});
    RunUntilPassed(lock, end);
  }
  void DrainAll(std::unique_lock<std::mutex>& lock) {
    do {
      changed.wait(lock, [this] { return !is_held; });
    } while (RunOne());
  }
};
State& state() {
  static State* const state = new State();
  return *state;
}
thread_local int contexts = 0;  // that this thread has pushed
thread_local int capture_mode = kModeGlobal;

using Lock = std::unique_lock<std::mutex>;

// Returns whether [at, at + bytes) is in one of the blocks.
bool IsWithin(const std::map<uint64_t, size_t>& blocks, uint64_t at, size_t bytes) {
  auto found = blocks.upper_bound(at);
  if (found == blocks.begin()) return false;
  --found;
  return at + bytes <= found->first + found->second;
}
bool IsOfDevice(uint64_t at, size_t bytes) {
  return state().takes_all || IsWithin(state().memory, at, bytes);
}
bool IsPinned(const void* at, size_t bytes) {
  return IsWithin(state().pinned, reinterpret_cast<uintptr_t>(at), bytes);
}
void* Pointer(uint64_t at) { return reinterpret_cast<void*>(at); }

// Checks what every call within a context checks first.
int InContext() {
  if (contexts <= 0) return kInvalidContext;
  return state().is_broken ? kIllegalAddress : kSuccess;
}
// Checks what InContext checks, for a call that a capture in mode "global" does not allow to other
// threads.
int InContextUnsafe() {
  if (state().has_capture && capture_mode != kModeRelaxed) {
    state().is_capture_spoilt = true;
    return kCaptureUnsupported;
  }
  return InContext();
}

void* MakeBlock(size_t bytes) {
  // Other bytes than 0, as nothing may rest on what is there.
  void* const block = std::malloc(bytes);
  std::memset(block, 0xa7, bytes);
  return block;
}
void FreeBlock(void* block, size_t bytes) {
  std::memset(block, 0xdd, bytes);
  std::free(block);
}

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
  if (error == kIllegalAddress) *name = "CUDA_ERROR_ILLEGAL_ADDRESS";
  if (error == kCaptureUnsupported) *name = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
  return *name == nullptr ? kInvalidValue : kSuccess;
}
BDN_EXPORT int cuGetErrorString(int error, const char** text) {
  if (error == kOutOfMemory) *text = "out of memory";
  if (error == kNoDevice) *text = "no CUDA-capable device is detected";
  if (error == kInvalidDevice) *text = "invalid device ordinal";
  if (error == kInvalidValue) *text = "invalid argument";
  if (error == kIllegalAddress) *text = "an illegal memory access was encountered";
  if (error == kCaptureUnsupported) *text = "operation not permitted when stream is capturing";
  return *text == nullptr ? kInvalidValue : kSuccess;
}
BDN_EXPORT int cuDeviceGetCount(int* count) {
  *count = 1;
  return kSuccess;
}
BDN_EXPORT int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal + 40;  // is not the ordinal
  return ordinal == 0 ? kSuccess : kInvalidDevice;
}
BDN_EXPORT int cuDeviceGetName(char* name, int bytes, int /*device*/) {
  std::strncpy(name, "Fake GPU", static_cast<size_t>(bytes));
  return kSuccess;
}
BDN_EXPORT int cuDeviceGetAttribute(int* value, int attribute, int device) {
  constexpr int kMajor = 75, kMinor = 76;
  if (device != 40) return kInvalidDevice;
  if (attribute != kMajor && attribute != kMinor) return kInvalidValue;
  *value = attribute == kMajor ? 9 : 0;
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
BDN_EXPORT int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  const Lock lock(state().mu);
  *least = 0;
  *greatest = -5;
  return InContext();
}
BDN_EXPORT int cuThreadExchangeStreamCaptureMode(int* mode) {
  if (*mode < kModeGlobal || *mode > kModeRelaxed) return kInvalidValue;
  std::swap(*mode, capture_mode);
  return kSuccess;
}

BDN_EXPORT int cuModuleLoadData(void** module, const void* image) {
  const Lock lock(state().mu);
  *module = const_cast<void*>(image);
  if (state().refuses_images && *static_cast<const char*>(image) != '/') return kNoBinaryForGpu;
  return InContextUnsafe();
}
BDN_EXPORT int cuModuleUnload(void* /*module*/) {
  const Lock lock(state().mu);
  return InContextUnsafe();
}
BDN_EXPORT int cuModuleGetFunction(void** function, void* /*module*/, const char* name) {
  const Lock lock(state().mu);
  for (const Kernel& kernel : kKernels) {
    if (std::string(name) != kernel.name) continue;
    *function = const_cast<Kernel*>(&kernel);
    return InContext();
  }
  return kNotFound;
}
BDN_EXPORT int cuFuncGetAttribute(int* value, int /*attribute*/, void* function) {
  const Lock lock(state().mu);
  *value = 0;
  return function == nullptr ? kInvalidValue : InContext();
}

#if BDN_FAKE_VERSION >= 12040
BDN_EXPORT int cuFuncLoad(void* function) {
  const Lock lock(state().mu);
  return function == nullptr ? kInvalidValue : InContext();
}
#endif

BDN_EXPORT int cuMemGetInfo_v2(size_t* free, size_t* total) {
  const Lock lock(state().mu);
  // Besides what tests may take there is as much as the largest reserve.
  constexpr size_t kReserve = size_t{16} << 30;
  *total = state().total_reported != 0 ? state().total_reported : BDN_FAKE_MEMORY + kReserve;
  *free = state().total_reported != 0 ? state().free_reported : *total - state().held;
  return InContextUnsafe();
}
BDN_EXPORT int cuMemAlloc_v2(uint64_t* memory, size_t bytes) {
  if (bytes == 0) return kInvalidValue;
  const Lock lock(state().mu);
  if (const int error = InContextUnsafe(); error != kSuccess) return error;
  if (const int error = state().Fail(kAllocations); error != kSuccess) return error;
  if (bytes > BDN_FAKE_MEMORY - state().held) return kOutOfMemory;
  *memory = reinterpret_cast<uintptr_t>(MakeBlock(bytes));
  state().memory[*memory] = bytes;
  state().held += bytes;
  return kSuccess;
}
BDN_EXPORT int cuMemFree_v2(uint64_t memory) {
  Lock lock(state().mu);
  const int error = InContextUnsafe();
  if (error != kSuccess && error != kIllegalAddress)
    return error;  // what is broken goes with its context
  ++state().counts.frees;
  state().DrainAll(lock);
  const auto found = state().memory.find(memory);
  if (found == state().memory.end()) return kInvalidValue;
  state().held -= found->second;
  FreeBlock(Pointer(memory), found->second);
  state().memory.erase(found);
  return error;
}
BDN_EXPORT int cuMemHostAlloc(void** memory, size_t bytes, unsigned /*flags*/) {
  const Lock lock(state().mu);
  if (const int error = InContextUnsafe(); error != kSuccess) return error;
  if (const int error = state().Fail(kPinnedAllocations); error != kSuccess) return error;
  *memory = MakeBlock(bytes);
  state().pinned[reinterpret_cast<uintptr_t>(*memory)] = bytes;
  return kSuccess;
}
BDN_EXPORT int cuMemFreeHost(void* memory) {
  Lock lock(state().mu);
  const int error = InContextUnsafe();
  if (error != kSuccess && error != kIllegalAddress) return error;
  state().DrainAll(lock);
  const auto found = state().pinned.find(reinterpret_cast<uintptr_t>(memory));
  if (found == state().pinned.end()) return kInvalidValue;
  FreeBlock(memory, found->second);
  state().pinned.erase(found);
  return error;
}
BDN_EXPORT int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void* stream) {
  const Lock lock(state().mu);
  if (const int error = InContext(); error != kSuccess) return error;
  if (const int error = state().Fail(kCopies); error != kSuccess) return error;
  if (!IsOfDevice(to, bytes)) return kInvalidValue;
  if (IsPinned(from, bytes)) {
    state().Put(stream, {.run = [=] { std::memcpy(Pointer(to), from, bytes); }});
    return kSuccess;
  }
  ++state().counts.pageable_copies;
  const auto* const begin = static_cast<const std::byte*>(from);
  const auto kept = std::make_shared<std::vector<std::byte>>(begin, begin + bytes);
  state().Put(stream, {.run = [=] { std::memcpy(Pointer(to), kept->data(), bytes); }});
  return kSuccess;
}
BDN_EXPORT int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void* stream) {
  Lock lock(state().mu);
  if (const int error = InContext(); error != kSuccess) return error;
  if (const int error = state().Fail(kCopies); error != kSuccess) return error;
  if (!IsOfDevice(from, bytes)) return kInvalidValue;
  state().Put(stream, {.run = [=] { std::memcpy(to, Pointer(from), bytes); }});
  if (IsPinned(to, bytes)) return kSuccess;
  ++state().counts.pageable_copies;
  state().Drain(lock, stream);
  return kSuccess;
}
BDN_EXPORT int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void* stream) {
  const Lock lock(state().mu);
  if (const int error = InContext(); error != kSuccess) return error;
  if (const int error = state().Fail(kCopies); error != kSuccess) return error;
  if (!IsOfDevice(from, bytes) || !IsOfDevice(to, bytes)) return kInvalidValue;
  state().Put(stream, {.run = [=] { std::memcpy(Pointer(to), Pointer(from), bytes); }});
  return kSuccess;
}
BDN_EXPORT int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void* stream) {
  const Lock lock(state().mu);
  if (const int error = InContext(); error != kSuccess) return error;
  if (!IsOfDevice(to, bytes)) return kInvalidValue;
  state().Put(stream, {.run = [=] { std::memset(Pointer(to), value, bytes); }});
  return kSuccess;
}

BDN_EXPORT int cuStreamCreateWithPriority(void** stream, unsigned /*flags*/, int /*priority*/) {
  const Lock lock(state().mu);
  if (const int error = InContext(); error != kSuccess) return error;
  if (const int error = state().Fail(kCreations); error != kSuccess) return error;
  *stream = new char;
  return kSuccess;
}
BDN_EXPORT int cuStreamDestroy_v2(void* stream) {
  Lock lock(state().mu);
  if (const int error = InContext(); error != kSuccess) return error;
  state().Drain(lock, stream);
  state().streams.erase(stream);
  delete static_cast<char*>(stream);
  return kSuccess;
}
BDN_EXPORT int cuStreamSynchronize(void* stream) {
  Lock lock(state().mu);
  if (const int error = InContextUnsafe(); error != kSuccess) return error;
  ++state().counts.stream_synchronizations;
  state().Drain(lock, stream);
  return InContext();
}
BDN_EXPORT int cuStreamIsCapturing(void* /*stream*/, int* capture) {
  const Lock lock(state().mu);
  *capture = state().captures ? 1 : 0;
  return InContext();
}
BDN_EXPORT int cuStreamWaitEvent(void* stream, void* event, unsigned /*flags*/) {
  const Lock lock(state().mu);
  if (const int error = InContext(); error != kSuccess) return error;
  state().Put(stream, {.after = static_cast<Event*>(event)->last});
  return kSuccess;
}
BDN_EXPORT int cuEventCreate(void** event, unsigned /*flags*/) {
  const Lock lock(state().mu);
  if (const int error = InContext(); error != kSuccess) return error;
  if (const int error = state().Fail(kCreations); error != kSuccess) return error;
  *event = new Event();
  return kSuccess;
}
BDN_EXPORT int cuEventDestroy_v2(void* event) {
  const Lock lock(state().mu);
  delete static_cast<Event*>(event);
  return InContext();
}
BDN_EXPORT int cuEventRecord(void* event, void* stream) {
  const Lock lock(state().mu);
  if (const int error = InContext(); error != kSuccess) return error;
  const auto mark = std::make_shared<Mark>();
  static_cast<Event*>(event)->last = mark;
  state().Put(stream, {.passes = mark});
  return kSuccess;
}
BDN_EXPORT int cuEventQuery(void* event) {
  const Lock lock(state().mu);
  if (const int error = InContextUnsafe(); error != kSuccess) return error;
  return static_cast<Event*>(event)->last->is_passed ? kSuccess : kNotReady;
}
BDN_EXPORT int cuEventSynchronize(void* event) {
  Lock lock(state().mu);
  if (const int error = InContextUnsafe(); error != kSuccess) return error;
  state().RunUntilPassed(lock, MarkPtr(static_cast<Event*>(event)->last));
  return InContext();
}

#ifndef BDN_FAKE_LACKS_LAUNCH
BDN_EXPORT int cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                              unsigned block_x, unsigned block_y, unsigned block_z,
                              unsigned shared_bytes, void* stream, void** parameters,
                              void** extra) {
  if (grid_x == 0 || block_x == 0 || block_x > bdn::device_kernels::kMostThreads ||
      grid_y * grid_z * block_y * block_z != 1 || shared_bytes != 0 || extra != nullptr) {
    return kInvalidValue;
  }
  const Kernel& kernel = *static_cast<const Kernel*>(function);
  std::vector<std::byte> arguments(kernel.arguments_bytes);
  std::memcpy(arguments.data(), parameters[0], arguments.size());
  const Lock lock(state().mu);
  if (const int error = InContext(); error != kSuccess) return error;
  if (const int error = state().Fail(kLaunches); error != kSuccess) return error;
  state().Put(stream, {.run = [=] {
                if (state().Fail(kKernelRuns) != kSuccess) {
                  state().is_broken = true;
                  return;
                }
                bdn::LaunchOnHost(kernel.id, grid_x, block_x, bdn::LaunchOrder::kForward,
                                  arguments.data());
              }});
  return kSuccess;
}
#endif

// The order in which streams are served from now on.
BDN_EXPORT void FakeSeed(unsigned seed) {
  const Lock lock(state().mu);
  state().random.seed(seed);
}
// Returns how many contexts the driver's callers left on the stack.
BDN_EXPORT int FakeContexts() {
  const Lock lock(state().mu);
  return state().contexts_left;
}
// Returns the bytes of memory that nobody freed.
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
  state().DrainAll(lock);
}
// Returns how many operations of a stream are not done yet.
BDN_EXPORT size_t FakePending(void* stream) {
  const Lock lock(state().mu);
  const auto found = state().streams.find(stream);
  return found == state().streams.end() ? 0 : found->second.size();
}
// Lets calls of a kind (FakeCall) fail with the error: `count` of them, after the next `first`. Of
// kernels the runs fail, and the device is broken until FakeMend.
BDN_EXPORT void FakeFail(int call, long first, long count, int error) {
  const Lock lock(state().mu);
  state().failures[call] = {first, count, error};
}
BDN_EXPORT void FakeMend() {
  Lock lock(state().mu);
  for (Failure& failure : state().failures) failure = {};
  if (state().is_broken)
    state().DrainAll(lock);  // what a broken device was asked for is never done
  state().is_broken = false;
}
// Writes the counts since the last FakeResetCounts, in the order of struct Counts.
BDN_EXPORT void FakeCounts(long* counts) {
  const Lock lock(state().mu);
  std::memcpy(counts, &state().counts, sizeof(Counts));
}
BDN_EXPORT void FakeResetCounts() {
  const Lock lock(state().mu);
  state().counts = {};
}
BDN_EXPORT void FakeCapture(int captures) {
  const Lock lock(state().mu);
  state().captures = captures != 0;
}
// A capture in mode "global" on a stream of somebody else's.
BDN_EXPORT void FakeBeginGlobalCapture() {
  const Lock lock(state().mu);
  state().has_capture = true;
  state().is_capture_spoilt = false;
}
BDN_EXPORT int FakeEndGlobalCapture() {
  const Lock lock(state().mu);
  state().has_capture = false;
  return state().is_capture_spoilt ? kCaptureInvalidated : kSuccess;
}
// The GPU is one that images, which are no text, have no code for.
BDN_EXPORT void FakeRefuseImages(int refuses) {
  const Lock lock(state().mu);
  state().refuses_images = refuses != 0;
}
// Sets what cuMemGetInfo says from now on; a total of 0: the truth.
BDN_EXPORT void FakeMemoryInfo(size_t free, size_t total) {
  const Lock lock(state().mu);
  state().free_reported = free;
  state().total_reported = total;
}
// Any memory passes for the device's from now on.
BDN_EXPORT void FakeTakeAllMemory() {
  const Lock lock(state().mu);
  state().takes_all = true;
}
