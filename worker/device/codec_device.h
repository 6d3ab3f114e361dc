#ifndef BANDONEON_WORKER_DEVICE_CODEC_DEVICE_H_
#define BANDONEON_WORKER_DEVICE_CODEC_DEVICE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/bytes.h"
#include "common/base/draw.h"
#include "common/base/mutex.h"
#include "compressors/codec.h"
#include "device/codecs/device_codec.h"
#include "device/compute_device.h"
#include "device/device_budget.h"
#include "device/pinned_pool.h"
#include "device/pinned_ring.h"

namespace bdn {

// A device as the stages of exchanges use it: payloads are made and read where the tensors are, and only
// they cross to the host. Each call waits for the device, asleep, in a stream of its own, so as many go on at
// once as threads call. Thread-safe.
//
// Errors: ResourceExhausted before anything was changed, where memory of the device is out; else as
// ComputeDevice, and then memory that was to change is unspecified.
class CodecDevice {
 public:
  // All are borrowed. `max_bytes` of the device's memory are taken at most: DeviceBudget. REQUIRES:
  // device->kernels() is OK.
  CodecDevice(ComputeDevice* device, PinnedPool* pinned, PinnedRing* ring, size_t max_bytes = 0);
  ~CodecDevice();
  CodecDevice(const CodecDevice&) = delete;
  CodecDevice& operator=(const CodecDevice&) = delete;

  // Device memory, all zeros, of what exchanges may take.
  absl::StatusOr<DeviceMemory> MakeZeros(size_t bytes);
  absl::Status CopyToDevice(ByteSpan from, void* to);
  absl::Status CopyToHost(const void* from, MutableByteSpan to);

  // As Codec::EncodeFrom, of what is in the device's memory: the bytes used; InvalidArgument where an
  // element is not finite. REQUIRES: out.size() >= codec.MaxEncodedBytes().
  absl::StatusOr<size_t> Encode(const Codec& codec, const DeviceSource& source, const Draw& draw,
                                MutableByteSpan out);
  // As Codec::Decode. REQUIRES: `payload` is valid, and does not change meanwhile.
  absl::Status Decode(const Codec& codec, ByteSpan payload, const DeviceTarget& to);
  // Undo and Owe of compressors/memory/error_feedback.h, of what `payload` decodes to. REQUIRES: as
  // UndoOnDevice.
  absl::Status Undo(const Codec& codec, ByteSpan payload, const DeviceSource& step);
  absl::Status Owe(const Codec& codec, ByteSpan payload, size_t n, float* residual);

  // A line of the log, the first time.
  void SayThatMemoryIsOut(const std::string& tensor, const absl::Status& status);

  // Of the device's memory: taken for residuals, momenta, payloads and scratch.
  size_t taken_bytes() const { return budget_.taken(); }
  // How many pushes were encoded here.
  uint64_t num_encoded() const { return num_encoded_.load(std::memory_order_relaxed); }
  // And how many of its tensors by the host, as memory was out.
  uint64_t num_encoded_by_host() const {
    return num_encoded_by_host_.load(std::memory_order_relaxed);
  }
  void CountEncodedByHost() { num_encoded_by_host_.fetch_add(1, std::memory_order_relaxed); }

 private:
  struct Lane;
  class Lease;

  absl::StatusOr<const DeviceCodec*> KernelsOf(const Codec& codec);
  absl::StatusOr<Lease> TakeLane();
  // To the lane's payload buffer, from a pinned block, which is to be kept until the lane was awaited.
  absl::Status Upload(Lane* lane, ByteSpan payload, std::optional<PinnedPool::Block>* block);

  ComputeDevice* const device_;
  PinnedPool* const pinned_;
  PinnedRing* const ring_;
  DeviceBudget budget_;
  std::atomic<bool> has_said_{false};
  // Counts alone: they publish nothing.
  std::atomic<uint64_t> num_encoded_{0};
  std::atomic<uint64_t> num_encoded_by_host_{0};
  mutable Mutex mu_;
  std::vector<std::unique_ptr<Lane>> idle_ ABSL_GUARDED_BY(mu_);
  // By spec: codecs of several keys are one another's equals.
  std::map<std::string, std::unique_ptr<DeviceCodec>> kernels_ ABSL_GUARDED_BY(mu_);
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_DEVICE_CODEC_DEVICE_H_
