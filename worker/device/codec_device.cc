#include "worker/device/codec_device.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <utility>

#include "common/base/log.h"
#include "common/base/status.h"
#include "device/codecs/device_feedback.h"

namespace bdn {
namespace {

// The offset of a payload behind its EncodeResult: one copy brings both to the host, and the
// payload is aligned as device memory is.
constexpr size_t kPayloadOffset = 256;
static_assert(sizeof(EncodeResult) <= kPayloadOffset);
constexpr size_t kLeastBytes = 256;

// Device memory that grows, to powers of two: so it has few sizes, and is seldom allocated anew.
struct GrowingMemory {
  absl::Status Reserve(ComputeDevice& device, DeviceBudget* budget, size_t wanted) {
    if (wanted <= memory.size()) return absl::OkStatus();
    memory = DeviceMemory();  // first, so that both need not fit
    BDN_ASSIGN_OR_RETURN(
        memory, DeviceMemory::Make(device, std::bit_ceil(std::max(wanted, kLeastBytes)), budget));
    return absl::OkStatus();
  }
  DeviceMemory memory;
};

// Turns ResourceExhausted into Internal. After a launch, memory may have changed, and callers take
// ResourceExhausted for a sign that they may begin anew on the host.
absl::Status AfterLaunch(const absl::Status& status) {
  if (absl::IsResourceExhausted(status)) return Internal("%s", status.message());
  return status;
}

}  // namespace

// The stream and memory that one call uses at a time.
struct CodecDevice::Lane {
  explicit Lane(ComputeDevice& of) : device(of) {}
  ~Lane() {
    if (has_event) device.FreeEvent(event);
    if (has_stream) device.FreeStream(stream);
  }
  ComputeDevice& device;
  bool has_stream = false;
  DeviceStream stream;
  bool has_event = false;
  DeviceEvent event;
  GrowingMemory payload;
  GrowingMemory scratch;
};

// A lane that is taken for one call.
class CodecDevice::Lease {
 public:
  Lease(CodecDevice* of, std::unique_ptr<Lane> lane) : of_(of), lane_(std::move(lane)) {}
  ~Lease() {
    if (lane_ == nullptr) return;
    // Work of a call that failed half-way may still run in the lane's memory, which the next call
    // would overwrite.
    if (!is_awaited_) lane_->device.Synchronize(lane_->stream).IgnoreError();
    MutexLock lock(&of_->mu_);
    of_->idle_.push_back(std::move(lane_));
  }
  Lease(Lease&&) = default;
  Lease& operator=(Lease&&) = delete;
  Lane* operator->() const { return lane_.get(); }
  Lane* get() const { return lane_.get(); }

  // Waits, asleep, until all that was put into the lane's stream is done.
  absl::Status Await() {
    ComputeDevice& device = lane_->device;
    is_awaited_ = false;
    BDN_RETURN_IF_ERROR(device.Record(lane_->event, lane_->stream));
    BDN_RETURN_IF_ERROR(device.Await(lane_->event));
    is_awaited_ = true;
    return absl::OkStatus();
  }
  // To be called after a copy by the ring, which waits for it.
  void NoteAwaited() { is_awaited_ = true; }

 private:
  CodecDevice* of_;
  std::unique_ptr<Lane> lane_;
  bool is_awaited_ = false;
};

CodecDevice::CodecDevice(ComputeDevice* device, PinnedPool* pinned, PinnedRing* ring,
                         size_t max_bytes)
    : device_(device), pinned_(pinned), ring_(ring), budget_(max_bytes) {}
CodecDevice::~CodecDevice() = default;

absl::StatusOr<CodecDevice::Lease> CodecDevice::TakeLane() {
  {
    MutexLock lock(&mu_);
    if (!idle_.empty()) {
      Lease lease(this, std::move(idle_.back()));
      idle_.pop_back();
      return lease;
    }
  }
  auto lane = std::make_unique<Lane>(*device_);
  BDN_ASSIGN_OR_RETURN(lane->stream, device_->MakeStream());
  lane->has_stream = true;
  BDN_ASSIGN_OR_RETURN(lane->event, device_->MakeEvent());
  lane->has_event = true;
  return Lease(this, std::move(lane));
}

absl::StatusOr<const DeviceCodec*> CodecDevice::KernelsOf(const Codec& codec) {
  const std::string spec = codec.spec();
  MutexLock lock(&mu_);
  std::unique_ptr<DeviceCodec>& kernels = kernels_[spec];
  if (kernels == nullptr) {
    BDN_ASSIGN_OR_RETURN(kernels, MakeDeviceCodec(codec));
  }
  return kernels.get();
}

absl::StatusOr<DeviceMemory> CodecDevice::MakeZeros(size_t bytes) {
  BDN_ASSIGN_OR_RETURN(DeviceMemory memory, DeviceMemory::Make(*device_, bytes, &budget_));
  BDN_ASSIGN_OR_RETURN(Lease lane, TakeLane());
  BDN_RETURN_IF_ERROR(device_->Zero(lane->stream, memory.get(), bytes));
  BDN_RETURN_IF_ERROR(lane.Await());
  return memory;
}

absl::Status CodecDevice::CopyToDevice(ByteSpan from, void* to) {
  BDN_ASSIGN_OR_RETURN(Lease lane, TakeLane());
  BDN_RETURN_IF_ERROR(ring_->CopyToDevice(lane->stream, from, to));
  lane.NoteAwaited();
  return absl::OkStatus();
}

absl::Status CodecDevice::CopyToHost(const void* from, MutableByteSpan to) {
  BDN_ASSIGN_OR_RETURN(Lease lane, TakeLane());
  BDN_RETURN_IF_ERROR(ring_->CopyToHost(lane->stream, from, to));
  lane.NoteAwaited();
  return absl::OkStatus();
}

absl::StatusOr<size_t> CodecDevice::Encode(const Codec& codec, const DeviceSource& source,
                                           const Draw& draw, MutableByteSpan out) {
  BDN_ASSIGN_OR_RETURN(const DeviceCodec* const kernels, KernelsOf(codec));
  const size_t most = codec.MaxEncodedBytes(source.n, source.dtype);
  const size_t bytes = kPayloadOffset + most;
  // Declared before the lane, whose destructor waits for the copy into them.
  EncodeResult of_result;
  auto pinned = pinned_->Take(bytes);
  BDN_ASSIGN_OR_RETURN(Lease lane, TakeLane());
  BDN_RETURN_IF_ERROR(lane->payload.Reserve(*device_, &budget_, bytes));
  BDN_RETURN_IF_ERROR(lane->scratch.Reserve(*device_, &budget_, kernels->ScratchBytes(source.n)));
  auto* const begin = static_cast<std::byte*>(lane->payload.memory.get());
  std::byte* const payload = begin + kPayloadOffset;
  BDN_RETURN_IF_ERROR(kernels->Encode(*device_, lane->stream, source, draw,
                                      {.payload = payload,
                                       .scratch = lane->scratch.memory.get(),
                                       .result = reinterpret_cast<EncodeResult*>(begin)}));
  // With a pinned block, the whole buffer is copied at once, before its length is known: one longer
  // copy costs less than a wait between two. Without one, the slower ring copies the length first,
  // then only the bytes used.
  const MutableByteSpan result = std::as_writable_bytes(std::span(&of_result, 1));
  if (pinned.ok()) {
    const MutableByteSpan copied = pinned->bytes().first(bytes);
    BDN_RETURN_IF_ERROR(AfterLaunch(device_->CopyToHost(lane->stream, begin, copied)));
    BDN_RETURN_IF_ERROR(AfterLaunch(lane.Await()));
    std::memcpy(result.data(), copied.data(), result.size());
    BDN_ASSIGN_OR_RETURN(const size_t used, Outcome(of_result));
    std::memcpy(out.data(), copied.data() + kPayloadOffset, used);
    num_encoded_.fetch_add(1, std::memory_order_relaxed);
    return used;
  }
  BDN_RETURN_IF_ERROR(AfterLaunch(ring_->CopyToHost(lane->stream, begin, result)));
  lane.NoteAwaited();
  BDN_ASSIGN_OR_RETURN(const size_t used, Outcome(of_result));
  BDN_RETURN_IF_ERROR(AfterLaunch(ring_->CopyToHost(lane->stream, payload, out.first(used))));
  num_encoded_.fetch_add(1, std::memory_order_relaxed);
  return used;
}

absl::Status CodecDevice::Upload(Lane* lane, ByteSpan payload,
                                 std::optional<PinnedPool::Block>* block) {
  BDN_RETURN_IF_ERROR(lane->payload.Reserve(*device_, &budget_, payload.size()));
  void* const to = lane->payload.memory.get();
  auto pinned = pinned_->Take(payload.size());
  if (!pinned.ok()) return ring_->CopyToDevice(lane->stream, payload, to);
  std::memcpy(pinned->bytes().data(), payload.data(), payload.size());
  block->emplace(*std::move(pinned));
  return device_->CopyToDevice(lane->stream, (*block)->bytes().first(payload.size()), to);
}

absl::Status CodecDevice::Decode(const Codec& codec, ByteSpan payload, const DeviceTarget& to) {
  BDN_ASSIGN_OR_RETURN(const DeviceCodec* const kernels, KernelsOf(codec));
  // Declared before the lane, whose destructor waits for the copy out of it.
  std::optional<PinnedPool::Block> block;
  BDN_ASSIGN_OR_RETURN(Lease lane, TakeLane());
  BDN_RETURN_IF_ERROR(Upload(lane.get(), payload, &block));
  BDN_RETURN_IF_ERROR(kernels->Decode(*device_, lane->stream, lane->payload.memory.get(), to));
  return lane.Await();
}

absl::Status CodecDevice::Undo(const Codec& codec, ByteSpan payload, const DeviceSource& step) {
  BDN_ASSIGN_OR_RETURN(const DeviceMemory decoded,
                       DeviceMemory::Make(*device_, step.n * sizeof(float), &budget_));
  auto* const values = static_cast<float*>(decoded.get());
  BDN_RETURN_IF_ERROR(Decode(codec, payload, {.y = values, .n = step.n}));
  BDN_ASSIGN_OR_RETURN(Lease lane, TakeLane());
  BDN_RETURN_IF_ERROR(UndoOnDevice(*device_, lane->stream, step, values));
  return AfterLaunch(lane.Await());
}

absl::Status CodecDevice::Owe(const Codec& codec, ByteSpan payload, size_t n, float* residual) {
  BDN_ASSIGN_OR_RETURN(const DeviceMemory decoded,
                       DeviceMemory::Make(*device_, n * sizeof(float), &budget_));
  auto* const values = static_cast<float*>(decoded.get());
  BDN_RETURN_IF_ERROR(Decode(codec, payload, {.y = values, .n = n}));
  BDN_ASSIGN_OR_RETURN(Lease lane, TakeLane());
  BDN_RETURN_IF_ERROR(OweOnDevice(*device_, lane->stream, values, n, residual));
  return AfterLaunch(lane.Await());
}

void CodecDevice::SayThatMemoryIsOut(const std::string& tensor, const absl::Status& status) {
  if (has_said_.exchange(true)) return;
  LogWarning(
      "tensor '%s' is encoded by processors, as all are that find no memory on %s: %s (leave some, "
      "or set codec-device=cpu)",
      tensor, device_->name(), status.message());
}

}  // namespace bdn
