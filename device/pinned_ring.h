#ifndef BANDONEON_DEVICE_PINNED_RING_H_
#define BANDONEON_DEVICE_PINNED_RING_H_

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/bytes.h"
#include "common/base/mutex.h"
#include "device/compute_device.h"

namespace bdn {

// A way to copy between a device and any memory of the host, through two pinned blocks: one is
// filled while the other is copied. It is for memory that is not pinned: a copy which the driver
// makes from such memory keeps its caller waiting on a processor, and the driver orders it as it
// likes.
//
// Thread-safe: one copy runs at a time, and others wait for it. A call returns when its copy is
// done. Errors are as those of ComputeDevice; after one, nothing of the copy is under way any more.
// Where no memory can be pinned, copies go through ordinary memory after all.
class PinnedRing {
 public:
  static constexpr size_t kBlockBytes = size_t{8} << 20;

  // A callback that is told, at most once, why no memory could be pinned. It must not copy by the
  // ring.
  using NotPinnedFn = std::function<void(const absl::Status& why)>;

  // REQUIRES: `device` outlives the ring. Pins no memory before the first copy.
  explicit PinnedRing(ComputeDevice* device, NotPinnedFn not_pinned = nullptr)
      : device_(device), not_pinned_(std::move(not_pinned)) {}
  ~PinnedRing();
  PinnedRing(const PinnedRing&) = delete;
  PinnedRing& operator=(const PinnedRing&) = delete;

  // These copy, after all work that was put into the stream before.
  absl::Status CopyToDevice(DeviceStream stream, ByteSpan from, void* to);
  absl::Status CopyToHost(DeviceStream stream, const void* from, MutableByteSpan to);

 private:
  // One of the two blocks.
  struct Block {
    std::byte* memory = nullptr;
    std::unique_ptr<std::byte[]> ordinary;  // the memory, where it is not pinned
    bool has_event = false;
    DeviceEvent event;  // passed when the last copy of the block is done
  };

  absl::Status Prepare() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status MakeMemory(Block* block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Upload(DeviceStream stream, ByteSpan from, std::byte* to)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Download(DeviceStream stream, const std::byte* from, MutableByteSpan to)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  ComputeDevice* const device_;
  Mutex mu_;
  NotPinnedFn not_pinned_ ABSL_GUARDED_BY(mu_);  // null once it was called
  std::array<Block, 2> blocks_ ABSL_GUARDED_BY(mu_);
};

}  // namespace bdn

#endif  // BANDONEON_DEVICE_PINNED_RING_H_
