#ifndef BANDONEON_WORKER_HOST_DAEMON_CHANNEL_H_
#define BANDONEON_WORKER_HOST_DAEMON_CHANNEL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/file_descriptor.h"
#include "common/base/mutex.h"
#include "compressors/codec.h"
#include "worker/client.h"
#include "worker/host/host_channel.h"
#include "worker/host/peer_lease.h"

namespace bandoneon::host {
class Answer;
class Ended;
class Presence;
class ToDaemon;
class Welcome;
}  // namespace bandoneon::host

namespace bdn {

// A process's connection to its host daemon, from hello to end. A thread of its own receives the
// daemon's messages, passes them to handlers, says that the process is alive, and notices when the
// daemon has ended or is silent. Thread-safe.
class DaemonChannel {
 public:
  struct Options {
    std::string address;  // of the daemon, for messages
    std::string job_id;   // empty: the daemon's, whatever it is
    int local_rank = -1;  // -1: any free one
    int local_size = 0;   // expected processes of the host; 0: not known
    // Encodes pushes within the host; null: they are not encoded.
    std::shared_ptr<const Codec> codec;
    absl::Duration attach_timeout = absl::Minutes(2);
  };
  // The handlers of the channel, called by the receiving thread under no lock. An error of the
  // first two means that the daemon breaks the protocol, and ends the connection.
  struct Handlers {
    std::function<absl::Status(const bandoneon::host::Ended&)> ended;
    std::function<absl::Status(bandoneon::host::Answer)> answer;
    // The connection is over. Called once, by the receiving thread or by another that calls Fail.
    std::function<void(const absl::Status&)> over;
  };

  // `arena` is the memory that the daemon may read; `clock` is borrowed.
  DaemonChannel(const Options& options, FileDescriptor socket, std::shared_ptr<ShmArena> arena,
                const Clock* clock);
  ~DaemonChannel();
  DaemonChannel(const DaemonChannel&) = delete;
  DaemonChannel& operator=(const DaemonChannel&) = delete;

  // Says hello, and waits until all processes of the host and all nodes of the job are there.
  absl::Status Attach(Handlers handlers);
  // Ends the connection; idempotent. Waiting calls end with Cancelled.
  void Close();
  // Waits for the receiving thread, after Close.
  void Join();
  // Ends all waiting and all later calls with `status`, unless they were ended before.
  void Fail(const absl::Status& status);

  // These come with the daemon's welcome, and are constant after Attach.
  Rank rank() const { return rank_; }
  int joined_size() const { return joined_size_; }
  uint64_t run_seed() const { return run_seed_; }
  const std::string& address() const { return options_.address; }
  const std::vector<int>& processes() const { return processes_; }  // of each worker of the job
  // Returns the workers that were not lost, as far as the daemon has told.
  Presence presence() const { return presence_.load(std::memory_order_relaxed); }
  int num_candidates() const { return candidates_.load(std::memory_order_relaxed); }
  // Returns whether the daemon has joined a job that runs, and was not taken in yet.
  bool is_candidate() const { return is_candidate_.load(std::memory_order_acquire); }
  void SetTakenIn() { is_candidate_.store(false, std::memory_order_release); }

  // Sends a message, from any thread. The receiving thread sends the part that the socket does not
  // take now.
  void Send(const bandoneon::host::ToDaemon& message) const;
  // Returns the place at which the daemon can read these bytes, or nothing if they lie in other
  // memory.
  std::optional<HostPlace> Find(ByteSpan bytes) const { return channel_.Find(bytes); }
  // Returns bytes of the daemon's memory. InvalidArgument: it has no such place.
  absl::StatusOr<HostChannel::Bytes> Resolve(const HostPlace& place, uint64_t bytes) const {
    return channel_.Resolve(place, bytes);
  }

  // Sends a sign of life if one is due. To be called on the receiving thread, from time to time by
  // handlers that take long.
  void SayAlive();

 private:
  void Receive();
  // Handles the messages that have come. Unavailable: the daemon has ended. Other errors: it breaks
  // the protocol.
  absl::Status ReadMessages();
  absl::Status OnMessage(const std::string& bytes);
  absl::Status OnWelcome(const bandoneon::host::Welcome& welcome);
  absl::Status OnPresence(const bandoneon::host::Presence& message);
  absl::Status CheckDaemonsLease() const;
  // Returns the error of a process whose daemon is lost: IsEvicted where the job goes on.
  absl::Status Lost(const std::string& text) const;
  int PollTimeoutMs() const;
  void Wake() const;

  const Options options_;
  const Clock* const clock_;
  mutable HostChannel channel_;
  const FileDescriptor wake_;
  Handlers handlers_;  // const once Attach has begun
  // Constant after Attach.
  Rank rank_ = 0;
  int joined_size_ = 0;
  uint64_t run_seed_ = 0;
  std::vector<int> processes_;
  // Relaxed: the numbers publish nothing else.
  std::atomic<Presence> presence_ = Presence();
  std::atomic<int> candidates_ = 0;
  std::atomic<bool> is_candidate_ = false;

  mutable Mutex mu_;
  CondVar changed_;
  bool is_welcome_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status over_ ABSL_GUARDED_BY(mu_);  // why nothing more is exchanged
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;

  // Used by the receiving thread alone.
  PeerLease lease_;                 // of the daemon
  std::optional<LifeSigns> signs_;  // set by the welcome
  std::string ranks_;               // the daemon's workers, for messages
  bool may_lose_hosts_ = false;     // the job goes on without this host, if the daemon is lost

  std::thread receiver_;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_HOST_DAEMON_CHANNEL_H_
