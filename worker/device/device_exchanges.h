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

// Where a push's data lies, and from when on it is there.
struct DevicePlace {
  static constexpr int kHost = -1;
  int ordinal = kHost;  // of the device, as its driver numbers them
  DeviceStream stream;  // the data is there once the stream is here
};

// Where gradients of devices are encoded: by rule, on the host, on the device. The rule: on the device what has
// kernels there and a payload of at most half its size, as then less is copied than without them, and what is
// left is encoded by the host beside the copy.
enum class CodecPlace { kAuto, kHost, kDevice };

// Exchanges of tensors that lie in devices' memory, beside those of the host's. Where they are encoded on
// the host, by a Client that need not know of devices, a tensor goes through pinned memory and streams of
// our own:
//
//   caller's stream -> copy out -> Client -> copy back -> who waits, or a stream of theirs
//
// Where they are encoded on the device, it is the Client's when the caller's stream is there, until the
// result is in its place.
//
// No call but a wait waits for a device, nothing synchronises one, and threads that wait for one sleep. Of one
// device, and of one tensor, exchanges begin in the order in which they were pushed. Thread-safe.
class DeviceExchanges {
 public:
  struct Options {
    // kDevice: what has no kernels is encoded on the host; a device that cannot run them is an error.
    CodecPlace codecs = CodecPlace::kAuto;
    // Of each device. Beyond it gradients go through memory that is not pinned, which is slower.
    size_t max_pinned_bytes = size_t{1} << 30;
    // Of each device's own memory, for residuals, payloads and scratch: DeviceBudget.
    size_t max_device_bytes = 0;
    // A device, when a tensor of its first comes. Errors as CudaDevice::Open.
    std::function<absl::StatusOr<std::unique_ptr<ComputeDevice>>(int ordinal)> open;
  };
  struct Push {
    PushRequest request;  // data is where place says; without sources
    DevicePlace place;
  };

  // All are borrowed; the client is gone before this is, but see Stop.
  DeviceExchanges(Options options, Client* client, const Clock* clock, Registry* telemetry);
  ~DeviceExchanges();
  DeviceExchanges(const DeviceExchanges&) = delete;
  DeviceExchanges& operator=(const DeviceExchanges&) = delete;

  // As Client::PushPullAll. What is wrong with a device's request besides its tensor is the ticket's
  // error. Also FailedPrecondition: the stream is being captured into a graph; NotFound: no such device.
  // A done runs when the result is in the device's memory.
  absl::Status PushPullAll(std::span<Push> pushes, std::vector<TicketId>* tickets);
  // As Client::WaitAll. `streams` is empty: until the results are where the data was. Else it has a
  // stream for each ticket: returns once the results are on their way back to the device, and what is
  // put into the stream from now on waits for them. Of tensors of the host it is not looked at.
  absl::Status WaitAll(std::span<const TicketId> tickets, std::span<const DeviceStream> streams,
                       absl::Duration timeout, std::vector<PushResult>* results);

  // Until the client has all that was pushed. DeadlineExceeded names a tensor that a stream has not come
  // to; Cancelled after Close.
  absl::Status AwaitStarted(absl::Duration timeout);
  // FailedPrecondition: the client does not have all of the tensor's pushes.
  absl::Status CheckStarted(uint32_t tensor) const;

  // The numbers of its metrics, as of one moment.
  struct Counts {
    uint64_t bytes_out = 0;      // copied from devices
    uint64_t bytes_back = 0;     // copied to devices
    uint64_t pinned_bytes = 0;   // of the host's memory, held now
    uint64_t device_bytes = 0;   // of devices' own memory, taken now
    uint64_t encoded_there = 0;  // pushes, on their device
    uint64_t encoded_here = 0;   // pushes of devices' tensors, on the host
    uint64_t unpinned = 0;       // pushes through memory that is not pinned
  };
  Counts counts() const;

  // Every wait ends with Cancelled, and nothing new is taken.
  void Close();
  // Waits until devices have done what they were asked, and nothing more is asked of the client: to be
  // called before that goes. REQUIRES: Close was called.
  void Stop();

 private:
  // So that they are told from the client's.
  static constexpr TicketId kFirstTicket = TicketId{1} << 63;
  static bool IsOurs(TicketId ticket) { return ticket >= kFirstTicket; }

  struct Device;
  struct Ticket;
  using Lane = EventLane<std::shared_ptr<Ticket>>;
  // Exchanges of one tensor that have not begun, and the lane that they are all in.
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
  // The ticket's result, which gives it up; nothing while it is in flight at `deadline`.
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
  // By tensor: what comes next of the tensor comes behind them.
  absl::flat_hash_map<uint32_t, Leaving> leaving_ ABSL_GUARDED_BY(mu_);
  uint64_t bytes_out_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t bytes_back_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t unpinned_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t encoded_here_ ABSL_GUARDED_BY(mu_) = 0;

  std::unique_ptr<Registry::Source> metrics_;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_DEVICE_DEVICE_EXCHANGES_H_
