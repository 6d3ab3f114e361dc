#ifndef BANDONEON_WORKER_HOST_DAEMON_CHANNEL_H_
#define BANDONEON_WORKER_HOST_DAEMON_CHANNEL_H_

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
#include "worker/host/host_channel.h"
#include "worker/host/peer_lease.h"

namespace bandoneon::host {
class Answer;
class Ended;
class ToDaemon;
class Welcome;
}  // namespace bandoneon::host

namespace bdn {

// A process's connection with its host's daemon, from hello to end. One thread of it receives what
// the daemon says, hands it on, says that the process is alive, and notices that the daemon is gone
// or silent. Thread-safe.
class DaemonChannel {
 public:
  struct Options {
    std::string address;                 // of the daemon, for messages
    std::string job_id;                  // empty: whatever the daemon's is
    int local_rank = -1;                 // -1: any free one
    int local_size = 0;                  // processes of the host that there are to be; 0: not known
    std::shared_ptr<const Codec> codec;  // of what it pushes, within the host; null: as it is
    absl::Duration attach_timeout = absl::Minutes(2);
  };
  // What the receiving thread calls, under no lock. An error of the first two is the daemon's: it
  // does not keep to the rules, and the connection ends.
  struct Handlers {
    std::function<absl::Status(const bandoneon::host::Ended&)> ended;
    std::function<absl::Status(bandoneon::host::Answer)> answer;
    // Nothing is exchanged any more. Called once, by the thread that calls Fail where that is
    // another.
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
  // Ends the connection, once. What waits ends with Cancelled.
  void Close();
  // Waits for the receiving thread, after Close.
  void Join();
  // Ends all that waits, and what is asked from now on, with `status`, unless something else has
  // ended it.
  void Fail(const absl::Status& status);

  // As of the welcome: constant after Attach.
  Rank rank() const { return rank_; }
  int size() const { return size_; }
  uint64_t run_seed() const { return run_seed_; }
  const std::string& address() const { return options_.address; }

  // Sends a message, on any thread: what the socket takes no more now, the receiving one sends.
  void Send(const bandoneon::host::ToDaemon& message) const;
  // Returns where the daemon can read these bytes; nothing: they are in other memory.
  std::optional<HostPlace> Find(ByteSpan bytes) const { return channel_.Find(bytes); }
  // Returns bytes of the daemon's. InvalidArgument: it has no such place.
  absl::StatusOr<HostChannel::Bytes> Resolve(const HostPlace& place, uint64_t bytes) const {
    return channel_.Resolve(place, bytes);
  }

  // Says that this process is there, where it is time to. On the receiving thread: handlers that
  // take long call it now and then.
  void SayAlive();

 private:
  void Receive();
  // Takes what has come. Unavailable: the daemon is gone, or does not keep to the rules.
  absl::Status ReadMessages();
  absl::Status OnMessage(const std::string& bytes);
  void OnWelcome(const bandoneon::host::Welcome& welcome);
  absl::Status CheckDaemonsLease() const;
  int PollTimeoutMs() const;
  void Wake() const;

  const Options options_;
  const Clock* const clock_;
  mutable HostChannel channel_;
  const FileDescriptor wake_;
  Handlers handlers_;  // const after Attach began, as these three after it
  Rank rank_ = 0;
  int size_ = 0;
  uint64_t run_seed_ = 0;

  mutable Mutex mu_;
  CondVar changed_;
  bool is_welcome_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status over_ ABSL_GUARDED_BY(mu_);  // why nothing more is exchanged
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;

  // The receiving thread's.
  PeerLease lease_;                 // of the daemon
  std::optional<LifeSigns> signs_;  // from the welcome on
  std::string ranks_;               // of the daemon, for messages

  std::thread receiver_;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_HOST_DAEMON_CHANNEL_H_
