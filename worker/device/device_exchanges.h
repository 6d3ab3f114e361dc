#ifndef BANDONEON_WORKER_DEVICE_DEVICE_EXCHANGES_H_
#define BANDONEON_WORKER_DEVICE_DEVICE_EXCHANGES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/telemetry/registry.h"
#include "device/compute_device.h"
#include "device/pinned_pool.h"
#include "worker/client.h"
#include "worker/device/event_lane.h"

namespace bdn {

// The memory in which a push's data lies, and the point in a stream from which on it is there.
struct DevicePlace {
  static constexpr int kHost = -1;
  int ordinal = kHost;  // the device's number in its driver
  DeviceStream stream;  // the data is there once the stream has come to this point
};

// A choice of where the gradients of devices are encoded: kHost, kDevice, or kAuto: on the device
// if the codec has kernels there and its payload is at most half the tensor's size, because then
// fewer bytes are copied than without them; else by the host, beside the copy.
enum class CodecPlace { kAuto, kHost, kDevice };

// The exchanges of tensors in devices' memory, and of the host's tensors beside them. A tensor that
// is encoded on the host by a Client, which need not know of devices, goes through pinned memory
// and streams of the library:
//
//   caller's stream -> copy out -> Client -> copy back -> waiting thread or caller's stream
//
// A tensor that is encoded on the device belongs to the Client from when the caller's stream has
// come to the push until the result is in its memory.
//
// Only waits block for a device; nothing synchronises a device, and threads that wait for one
// sleep. The exchanges of one device begin in the order in which they were pushed, and so do those
// of one tensor. Thread-safe.
class DeviceExchanges {
 public:
  struct Options {
    // With kDevice, tensors whose codec has no kernels are encoded on the host, and a device that
    // cannot run kernels is an error.
    CodecPlace codecs = CodecPlace::kAuto;
    // The limit of pinned memory for each device. Beyond it gradients go through memory that is not
    // pinned, which is slower.
    size_t max_pinned_bytes = size_t{1} << 30;
    // The limit of each device's own memory for residuals, payloads and scratch: see DeviceBudget.
    size_t max_device_bytes = 0;
    // Opens a device when its first tensor is pushed. Errors are those of CudaDevice::Open.
    std::function<absl::StatusOr<std::unique_ptr<ComputeDevice>>(int ordinal)> open;
  };
  // A push of a tensor of the host or of a device.
  struct Push {
    PushRequest request;  // without sources; its data lies where `place` says
    DevicePlace place;
  };

  // All are borrowed. The client may be destroyed before this, after Stop.
  DeviceExchanges(Options options, Client* client, const Clock* clock, Registry* telemetry);
  ~DeviceExchanges();
  DeviceExchanges(const DeviceExchanges&) = delete;
  DeviceExchanges& operator=(const DeviceExchanges&) = delete;

  // Does what Client::PushPullAll does. If the request of a device's tensor does not fit its
  // declaration, that is the ticket's error. Further errors: FailedPrecondition: the stream is
  // being captured into a graph. NotFound: there is no such device. Unimplemented: left_out of a
  // device's tensor. A `done` callback runs when the result is in the device's memory.
  absl::Status PushPullAll(std::span<Push> pushes, std::vector<TicketId>* tickets);
  // Does what Client::WaitAll does. Without `streams`, waits until the results are in the memory of
  // the data. Else `streams` has a stream for each ticket, and the call returns once the results
  // are on their way to the device: work put into a stream from now on waits for its ticket's
  // result. For tensors of the host the stream is ignored.
  absl::Status WaitAll(std::span<const TicketId> tickets, std::span<const DeviceStream> streams,
                       absl::Duration timeout, std::vector<PushResult>* results);

  // Waits until the client has all pushes. DeadlineExceeded names a tensor for which its stream has
  // not come to the push. Cancelled after Close.
  absl::Status AwaitStarted(absl::Duration timeout);
  // FailedPrecondition: the client does not have all pushes of the tensor yet.
  absl::Status CheckStarted(uint32_t tensor) const;

  // The numbers of its metrics, as of one moment.
  struct Counts {
    uint64_t bytes_out = 0;      // copied from devices
    uint64_t bytes_back = 0;     // copied to devices
    uint64_t pinned_bytes = 0;   // of the host's memory, held now
    uint64_t device_bytes = 0;   // of devices' memory, taken now
    uint64_t encoded_there = 0;  // pushes encoded on their device
    uint64_t encoded_here = 0;   // pushes of devices' tensors encoded on the host
    uint64_t unpinned = 0;       // pushes through memory that is not pinned
  };
  Counts counts() const;

  // Ends every wait with Cancelled; new pushes are refused.
  void Close();
  // Waits until pushes have left their devices; nothing more is asked of the client afterwards. To
  // be called before the client is destroyed. REQUIRES: Close was called.
  void Stop();

 private:
  // Tickets from here on are of this class, and lower ones of the client.
  static constexpr TicketId kFirstTicket = TicketId{1} << 63;
  static bool IsOurs(TicketId ticket) { return ticket >= kFirstTicket; }

  struct Device;
  struct Ticket;
  using Lane = EventLane<std::shared_ptr<Ticket>>;
  // The exchanges of one tensor that have not begun, and the lane in which all of them are.
  struct Leaving {
    int count = 0;
    Lane* lane = nullptr;
  };

  absl::StatusOr<Device*> DeviceOf(int ordinal);
  absl::StatusOr<TicketId> Leave(Push* push);
  absl::Status CopyOut(Ticket* ticket, DeviceStream stream);
  absl::StatusOr<bool> StaysOnDevice(Ticket* ticket) const;
  void OnLeft(std::vector<Lane::Item> items);
  void OnAnswer(const std::shared_ptr<Ticket>& ticket, const absl::StatusOr<PushResult>& result);
  absl::Status CopyBack(Ticket* ticket);
  void OnBack(std::vector<Lane::Item> items);
  void End(const std::shared_ptr<Ticket>& ticket, absl::StatusOr<PushResult> result);
  // Waits for a ticket until `deadline` and returns its result, which gives it up; returns nothing
  // if it is still in flight then.
  std::optional<absl::StatusOr<PushResult>> Wait(TicketId ticket, const DeviceStream* stream,
                                                 absl::Time deadline);
  absl::Status Describe(TicketId ticket) const;

  const Options options_;
  Client* const client_;
  const Clock* const clock_;

  mutable Mutex mu_;
  CondVar changed_;
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
  std::map<int, std::unique_ptr<Device>> devices_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<TicketId, std::shared_ptr<Ticket>> tickets_ ABSL_GUARDED_BY(mu_);
  TicketId last_ticket_ ABSL_GUARDED_BY(mu_) = kFirstTicket;
  // By tensor. A later push of the tensor queues behind these.
  absl::flat_hash_map<uint32_t, Leaving> leaving_ ABSL_GUARDED_BY(mu_);
  uint64_t bytes_out_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t bytes_back_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t unpinned_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t encoded_here_ ABSL_GUARDED_BY(mu_) = 0;

  std::unique_ptr<Registry::Source> metrics_;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_DEVICE_DEVICE_EXCHANGES_H_
