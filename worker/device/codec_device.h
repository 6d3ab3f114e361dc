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

// A device that encodes and decodes for the stages of exchanges: payloads are made and read in the
// memory where the tensors lie, and only payloads cross to the host. Each call sleeps until the
// device is done, in a stream of its own, so that as many calls run at once as threads make them.
// Thread-safe.
//
// Errors: ResourceExhausted, with nothing changed, if the device's memory is out. Other errors are
// those of ComputeDevice; then memory that the call was to change is unspecified.
class CodecDevice {
 public:
  // All are borrowed. At most `max_bytes` of the device's memory are taken: see DeviceBudget.
  // REQUIRES: device->kernels() is OK.
  CodecDevice(ComputeDevice* device, PinnedPool* pinned, PinnedRing* ring, size_t max_bytes = 0);
  ~CodecDevice();
  CodecDevice(const CodecDevice&) = delete;
  CodecDevice& operator=(const CodecDevice&) = delete;

  // Allocates device memory, all zeros, within the budget for exchanges.
  absl::StatusOr<DeviceMemory> MakeZeros(size_t bytes);
  absl::Status CopyToDevice(ByteSpan from, void* to);
  absl::Status CopyToHost(const void* from, MutableByteSpan to);

  // Does what Codec::EncodeFrom does, from the device's memory, and returns the bytes used.
  // InvalidArgument: an element is not finite. REQUIRES: out.size() >= codec.MaxEncodedBytes().
  absl::StatusOr<size_t> Encode(const Codec& codec, const DeviceSource& source, const Draw& draw,
                                MutableByteSpan out);
  // Does what Codec::Decode does. REQUIRES: `payload` is valid, and does not change meanwhile.
  absl::Status Decode(const Codec& codec, ByteSpan payload, const DeviceTarget& to);
  // Do what Undo and Owe of compressors/memory/error_feedback.h do, with the values that `payload`
  // decodes to. REQUIRES: as UndoOnDevice.
  absl::Status Undo(const Codec& codec, ByteSpan payload, const DeviceSource& step);
  absl::Status Owe(const Codec& codec, ByteSpan payload, size_t n, float* residual);

  // Logs a warning, at the first call only.
  void SayThatMemoryIsOut(const std::string& tensor, const absl::Status& status);

  // Returns the bytes of the device's memory that residuals, momenta, payloads and scratch take.
  size_t taken_bytes() const { return budget_.taken(); }
  // Returns the number of pushes that this device has encoded.
  uint64_t num_encoded() const { return num_encoded_.load(std::memory_order_relaxed); }
  // Returns the number of pushes of its tensors that the host has encoded, because the device's
  // memory was out.
  uint64_t num_encoded_by_host() const {
    return num_encoded_by_host_.load(std::memory_order_relaxed);
  }
  void CountEncodedByHost() { num_encoded_by_host_.fetch_add(1, std::memory_order_relaxed); }

 private:
  struct Lane;
  class Lease;

  absl::StatusOr<const DeviceCodec*> KernelsOf(const Codec& codec);
  absl::StatusOr<Lease> TakeLane();
  // Copies a payload to the lane's payload buffer, through a pinned block, which must be kept until
  // the lane was awaited.
  absl::Status Upload(Lane* lane, ByteSpan payload, std::optional<PinnedPool::Block>* block);

  ComputeDevice* const device_;
  PinnedPool* const pinned_;
  PinnedRing* const ring_;
  DeviceBudget budget_;
  std::atomic<bool> has_said_{false};
  // Counts, which publish nothing else.
  std::atomic<uint64_t> num_encoded_{0};
  std::atomic<uint64_t> num_encoded_by_host_{0};
  mutable Mutex mu_;
  std::vector<std::unique_ptr<Lane>> idle_ ABSL_GUARDED_BY(mu_);
  // By spec: equal specs of several keys share their kernels.
  std::map<std::string, std::unique_ptr<DeviceCodec>> kernels_ ABSL_GUARDED_BY(mu_);
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_DEVICE_CODEC_DEVICE_H_
