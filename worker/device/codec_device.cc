#include "worker/device/codec_device.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "common/base/log.h"
#include "common/base/status.h"
#include "device/codecs/device_feedback.h"

namespace bdn {
namespace {

// As large as what is worth a thought.
constexpr size_t kMeasuredElements = size_t{1} << 20;
constexpr int kMeasurements = 3;

// Memory of a device that grows.
struct GrowingMemory {
  absl::Status Reserve(ComputeDevice& device, size_t wanted) {
    if (wanted <= bytes) return absl::OkStatus();
    memory = DeviceMemory();  // first, so that both need not fit
    bytes = 0;
    BDN_ASSIGN_OR_RETURN(memory, DeviceMemory::Make(device, wanted));
    bytes = wanted;
    return absl::OkStatus();
  }
  DeviceMemory memory;
  size_t bytes = 0;
};

}  // namespace

// What one call at a time works with.
struct CodecDevice::Lane {
  explicit Lane(ComputeDevice& of) : device(of) {}
  ~Lane() {
    if (has_stream) device.FreeStream(stream);
  }
  ComputeDevice& device;
  bool has_stream = false;
  DeviceStream stream;
  GrowingMemory payload;
  GrowingMemory scratch;
  GrowingMemory result;
};

class CodecDevice::Lease {
 public:
  Lease(CodecDevice* of, std::unique_ptr<Lane> lane) : of_(of), lane_(std::move(lane)) {}
  ~Lease() {
    if (lane_ == nullptr) return;
    // What failed half-way may still be under way in its memory.
    lane_->device.Synchronize(lane_->stream).IgnoreError();
    MutexLock lock(&of_->mu_);
    of_->idle_.push_back(std::move(lane_));
  }
  Lease(Lease&&) = default;
  Lease& operator=(Lease&&) = delete;
  Lane* operator->() const { return lane_.get(); }
  Lane* get() const { return lane_.get(); }

 private:
  CodecDevice* of_;
  std::unique_ptr<Lane> lane_;
};

CodecDevice::CodecDevice(ComputeDevice* device, PinnedPool* pinned)
    : device_(device), pinned_(pinned) {}
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
  BDN_ASSIGN_OR_RETURN(DeviceMemory memory, DeviceMemory::Make(*device_, bytes));
  const std::vector<std::byte> zeros(bytes);
  BDN_RETURN_IF_ERROR(CopyToDevice(zeros, memory.get()));
  return memory;
}

absl::Status CodecDevice::CopyToDevice(ByteSpan from, void* to) {
  BDN_ASSIGN_OR_RETURN(const Lease lane, TakeLane());
  BDN_RETURN_IF_ERROR(device_->CopyToDevice(lane->stream, from, to));
  return device_->Synchronize(lane->stream);
}

absl::Status CodecDevice::CopyToHost(const void* from, MutableByteSpan to) {
  BDN_ASSIGN_OR_RETURN(const Lease lane, TakeLane());
  BDN_RETURN_IF_ERROR(device_->CopyToHost(lane->stream, from, to));
  return device_->Synchronize(lane->stream);
}

absl::StatusOr<size_t> CodecDevice::Encode(const Codec& codec, const DeviceSource& source,
                                           const Draw& draw, MutableByteSpan out) {
  BDN_ASSIGN_OR_RETURN(const DeviceCodec* const kernels, KernelsOf(codec));
  const size_t most = codec.MaxEncodedBytes(source.n, source.dtype);
  // Before the lane, which waits for the copy into it when it ends.
  EncodeResult of_result;
  std::optional<PinnedPool::Block> block;
  if (auto pinned = pinned_->Take(std::max<size_t>(most, 1)); pinned.ok()) {
    block.emplace(*std::move(pinned));
  }
  const MutableByteSpan copied = block.has_value() ? block->bytes().first(most) : out.first(most);
  BDN_ASSIGN_OR_RETURN(const Lease lane, TakeLane());
  BDN_RETURN_IF_ERROR(lane->payload.Reserve(*device_, std::max<size_t>(most, 4)));
  BDN_RETURN_IF_ERROR(
      lane->scratch.Reserve(*device_, std::max<size_t>(kernels->ScratchBytes(source.n), 8)));
  BDN_RETURN_IF_ERROR(lane->result.Reserve(*device_, sizeof(EncodeResult)));
  auto* const result = static_cast<EncodeResult*>(lane->result.memory.get());
  void* const payload = lane->payload.memory.get();
  BDN_RETURN_IF_ERROR(kernels->Encode(
      *device_, lane->stream, source, draw,
      {.payload = payload, .scratch = lane->scratch.memory.get(), .result = result}));
  BDN_RETURN_IF_ERROR(
      device_->CopyToHost(lane->stream, result, std::as_writable_bytes(std::span(&of_result, 1))));
  BDN_RETURN_IF_ERROR(device_->CopyToHost(lane->stream, payload, copied));
  BDN_RETURN_IF_ERROR(device_->Synchronize(lane->stream));
  BDN_ASSIGN_OR_RETURN(const size_t used, Outcome(of_result));
  if (block.has_value()) std::memcpy(out.data(), copied.data(), used);
  return used;
}

absl::Status CodecDevice::Upload(Lane* lane, ByteSpan payload) {
  BDN_RETURN_IF_ERROR(lane->payload.Reserve(*device_, std::max<size_t>(payload.size(), 4)));
  return device_->CopyToDevice(lane->stream, payload, lane->payload.memory.get());
}

absl::Status CodecDevice::Decode(const Codec& codec, ByteSpan payload, const DeviceTarget& to) {
  BDN_ASSIGN_OR_RETURN(const DeviceCodec* const kernels, KernelsOf(codec));
  BDN_ASSIGN_OR_RETURN(const Lease lane, TakeLane());
  BDN_RETURN_IF_ERROR(Upload(lane.get(), payload));
  BDN_RETURN_IF_ERROR(kernels->Decode(*device_, lane->stream, lane->payload.memory.get(), to));
  return device_->Synchronize(lane->stream);
}

absl::Status CodecDevice::Undo(const Codec& codec, ByteSpan payload, const DeviceSource& step) {
  BDN_ASSIGN_OR_RETURN(const DeviceMemory decoded,
                       DeviceMemory::Make(*device_, step.n * sizeof(float)));
  auto* const values = static_cast<float*>(decoded.get());
  BDN_RETURN_IF_ERROR(Decode(codec, payload, {.y = values, .n = step.n}));
  BDN_ASSIGN_OR_RETURN(const Lease lane, TakeLane());
  BDN_RETURN_IF_ERROR(UndoOnDevice(*device_, lane->stream, step, values));
  return device_->Synchronize(lane->stream);
}

absl::Status CodecDevice::Owe(const Codec& codec, ByteSpan payload, size_t n, float* residual) {
  BDN_ASSIGN_OR_RETURN(const DeviceMemory decoded, DeviceMemory::Make(*device_, n * sizeof(float)));
  auto* const values = static_cast<float*>(decoded.get());
  BDN_RETURN_IF_ERROR(Decode(codec, payload, {.y = values, .n = n}));
  BDN_ASSIGN_OR_RETURN(const Lease lane, TakeLane());
  BDN_RETURN_IF_ERROR(OweOnDevice(*device_, lane->stream, values, n, residual));
  return device_->Synchronize(lane->stream);
}

void CodecDevice::SayThatMemoryIsOut(const std::string& tensor, const absl::Status& status) {
  if (has_said_.exchange(true)) return;
  LogWarning(
      "tensor '%s' is encoded by processors, as all are that find no memory on %s: %s (leave some, or "
      "set codec-device=cpu)",
      tensor, device_->name(), status.message());
}

std::optional<bool> CodecDevice::Pays(const Codec& codec) const {
  const std::string spec = codec.spec();
  MutexLock lock(&mu_);
  const auto found = pays_.find(spec);
  if (found == pays_.end()) return std::nullopt;
  return found->second;
}

void CodecDevice::MeasureWhetherItPays(const Codec& codec, const Clock& clock) {
  if (Pays(codec).has_value()) return;
  const absl::StatusOr<bool> pays = Measure(codec, clock);
  if (!pays.ok()) {
    LogWarning("codec-device=auto: %s is encoded by processors: %s", codec.spec(),
               pays.status().message());
  }
  MutexLock lock(&mu_);
  pays_[codec.spec()] = pays.value_or(false);
}

absl::StatusOr<bool> CodecDevice::Measure(const Codec& codec, const Clock& clock) {
  constexpr size_t kBytes = kMeasuredElements * sizeof(float);
  std::vector<float> values(kMeasuredElements);
  const Draw draw;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(static_cast<int>(i * 2654435761u % 2001) - 1000);
  }
  BDN_ASSIGN_OR_RETURN(const DeviceMemory there, DeviceMemory::Make(*device_, kBytes));
  BDN_RETURN_IF_ERROR(CopyToDevice(std::as_bytes(std::span(values)), there.get()));
  BDN_ASSIGN_OR_RETURN(const PinnedPool::Block block, pinned_->Take(kBytes));
  const MutableByteSpan copied = block.bytes().first(kBytes);
  std::vector<std::byte> payload(codec.MaxEncodedBytes(kMeasuredElements, DType::kFloat32));
  absl::Duration on_host = absl::InfiniteDuration(), on_device = absl::InfiniteDuration();
  for (int i = 0; i < kMeasurements; ++i) {
    const absl::Time begin = clock.Now();
    BDN_RETURN_IF_ERROR(CopyToHost(there.get(), copied));
    const ConstView x{copied.data(), DType::kFloat32, kMeasuredElements};
    BDN_RETURN_IF_ERROR(codec.Encode(x, 1.0f, draw, payload).status());
    const absl::Time middle = clock.Now();
    BDN_RETURN_IF_ERROR(
        Encode(codec, {.x = there.get(), .n = kMeasuredElements}, draw, payload).status());
    on_host = std::min(on_host, middle - begin);
    on_device = std::min(on_device, clock.Now() - middle);
  }
  const bool pays = on_device < on_host;
  LogInfo("codec-device=auto: %s of %s: %s/MiB there, %s/MiB copied and encoded here: %s",
          codec.spec(), device_->name(), absl::FormatDuration(on_device / (kBytes >> 20)),
          absl::FormatDuration(on_host / (kBytes >> 20)), pays ? "there" : "here");
  return pays;
}

}  // namespace bdn
