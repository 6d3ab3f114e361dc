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
#include "common/base/clock.h"
#include "common/base/draw.h"
#include "common/base/mutex.h"
#include "compressors/codec.h"
#include "device/codecs/device_codec.h"
#include "device/compute_device.h"
#include "device/pinned_pool.h"

namespace bdn {

// A device as the stages of exchanges use it: payloads are made and read where the tensors are, and only
// they cross to the host. Each call waits for the device, in a stream of its own, so as many go on at
// once as threads call. Thread-safe.
//
// Errors: ResourceExhausted before anything was changed; else as ComputeDevice, and then memory that
// was to change is unspecified.
class CodecDevice {
 public:
  // Both are borrowed. REQUIRES: device->kernels() is OK.
  CodecDevice(ComputeDevice* device, PinnedPool* pinned);
  ~CodecDevice();
  CodecDevice(const CodecDevice&) = delete;
  CodecDevice& operator=(const CodecDevice&) = delete;

  // Device memory, all zeros.
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

  // Whether encoding there and copying payloads takes less time than copying what is encoded and one
  // thread's encoding it here. Nothing: nobody has measured it.
  std::optional<bool> Pays(const Codec& codec) const;
  // Measures that, unless it is known: some milliseconds. Where it fails, encoding there does not pay.
  void MeasureWhetherItPays(const Codec& codec, const Clock& clock);

 private:
  struct Lane;
  class Lease;

  absl::StatusOr<const DeviceCodec*> KernelsOf(const Codec& codec);
  absl::StatusOr<Lease> TakeLane();
  // To the lane's payload buffer.
  absl::Status Upload(Lane* lane, ByteSpan payload);
  absl::StatusOr<bool> Measure(const Codec& codec, const Clock& clock);

  ComputeDevice* const device_;
  PinnedPool* const pinned_;
  std::atomic<bool> has_said_{false};
  mutable Mutex mu_;
  std::vector<std::unique_ptr<Lane>> idle_ ABSL_GUARDED_BY(mu_);
  // By spec: codecs of several keys are one another's equals.
  std::map<std::string, std::unique_ptr<DeviceCodec>> kernels_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, bool> pays_ ABSL_GUARDED_BY(mu_);  // by spec
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_DEVICE_CODEC_DEVICE_H_
