#ifndef BANDONEON_WORKER_HOST_HOST_CLIENT_H_
#define BANDONEON_WORKER_HOST_HOST_CLIENT_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/base/file_descriptor.h"
#include "common/base/mutex.h"
#include "common/telemetry/registry.h"
#include "worker/client.h"
#include "worker/host/host_channel.h"
#include "worker/host/peer_lease.h"
#include "worker/ticket_table.h"

namespace bandoneon::host {
class Answer;
class Call;
class Ended;
class Push;
class ToDaemon;
}  // namespace bandoneon::host

namespace bdn {

// A process that takes part in a job through the daemon of its host (HostServer). What it pushes is read
// where it lies if that is memory of Allocate, and is copied into such memory once if not; each result is
// copied once, from where the daemon decoded it for all. Thread-safe.
//
// One thread takes what the daemon says, copies results and runs callbacks.
class HostClient final : public Client {
 public:
  struct Options {
    std::string address;                 // of the daemon, for messages
    std::string job_id;                  // empty: whatever the daemon's is
    int local_rank = -1;                 // -1: any free one
    int local_size = 0;                  // processes of the host that there are to be; 0: not known
    std::shared_ptr<const Codec> codec;  // of what it pushes, within the host; null: as it is
    absl::Duration attach_timeout = absl::Minutes(2);
  };

  // The numbers of the process's own metrics, as of one moment.
  struct Counts {
    Rank rank = 0;
    int size = 0;
    uint64_t tickets_ended = 0;
    uint64_t bytes_staged = 0;   // copied for the daemon to read
    uint64_t bytes_results = 0;  // copied into the caller's tensors
  };
  Counts counts() const;

  // Says hello over a connected socket, and waits until all processes of the host and all nodes of the
  // job are there. `clock` and `telemetry` are borrowed and outlive it.
  static absl::StatusOr<std::unique_ptr<HostClient>> Attach(const Options& options,
                                                            FileDescriptor socket,
                                                            const Clock* clock,
                                                            Registry* telemetry);
  ~HostClient() override;
  HostClient(const HostClient&) = delete;
  HostClient& operator=(const HostClient&) = delete;

  Rank rank() const override { return rank_; }
  int size() const override { return size_; }
  std::shared_ptr<MemoryDomain> memory() override { return arena_; }
  absl::StatusOr<std::vector<uint32_t>> Declare(std::vector<TensorDeclaration> tensors,
                                                absl::Duration timeout) override;
  absl::Status Retire(std::span<const uint32_t> tensors) override;
  absl::StatusOr<TensorFacts> FactsOf(uint32_t tensor) const override;
  absl::Status PushPullAll(std::span<PushRequest> requests,
                           std::vector<TicketId>* tickets) override;
  absl::Status WaitAll(std::span<const TicketId> tickets, absl::Duration timeout,
                       std::vector<PushResult>* results) override;
  absl::Status DescribeWait(TicketId ticket) override;
  absl::Status Broadcast(const std::string& name, MutableByteSpan data, Rank root,
                         absl::Duration timeout) override;
  absl::Status Barrier(const std::string& name, absl::Duration timeout) override;
  absl::Status ReportValue(const ReportedValue& value) override;
  absl::Status Leave(absl::Duration timeout) override;
  absl::Status Abort(const std::string& reason) override;
  void Close() override;
  absl::Status Perform(StateCall* call, absl::Duration timeout) override;

 private:
  // A push that is not over: with the daemon, or waiting for the one before it.
  struct Pending {
    TicketId ticket = 0;
    Step step = 0;
    PushRequest request;
    bool is_taken = false;  // somebody sends it, or has
  };
  struct Tensor {
    TensorDeclaration declaration;
    HostChannel::Bytes result;     // float32, or float64: where the daemon puts it
    std::byte* staging = nullptr;  // for what lies in memory of its own, once something did
    bool keeps_left_out = false;   // its push has a memory
    bool retired = false;          // here until its push that the daemon has is over
    Step pushed = 0;
    std::deque<std::shared_ptr<Pending>> pending;
  };
  // A push whose turn it is.
  struct Ready {
    const Tensor* tensor;
    std::shared_ptr<Pending> pending;
  };
  // A blocking caller, until its answer is here.
  struct Caller;

  HostClient(const Options& options, FileDescriptor socket, const Clock* clock);
  absl::Status SayHello();
  absl::Status CountWhatTheDaemonCounts(Registry* telemetry);
  void ReadDaemonsMetrics(std::vector<Sample>* samples) const;
  std::string ReadDaemonsObject(std::string_view name) const;

  // Any thread: what the socket takes no more now, the receiving one sends.
  void Send(const bandoneon::host::ToDaemon& message) const;
  void Wake() const;

  // ---- The receiving thread

  void Receive();
  // Takes what has come. Unavailable: the daemon is gone, or does not keep to the rules.
  absl::Status ReadMessages();
  absl::Status OnMessage(const std::string& bytes);
  // Says that this process is there, where it is time to.
  void SayAlive();
  absl::Status CheckDaemonsLease() const;
  int PollTimeoutMs() const;
  absl::Status OnEnded(const bandoneon::host::Ended& ended);
  void CopyResult(const Tensor& tensor, const Pending& pending,
                  const bandoneon::host::Ended& ended);
  absl::Status OnAnswer(bandoneon::host::Answer answer);
  // Ends all that waits, and what is asked from now on, with this.
  void Fail(const absl::Status& status);

  // ---- Calls

  absl::Status Check() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // NotFound: it was not declared, or is retired.
  absl::StatusOr<Tensor*> Find(uint32_t tensor) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<const Tensor*> Find(uint32_t tensor) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gives its memory back if it is retired and the daemon has nothing of it.
  void RemoveIfUnused(uint32_t tensor) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<TicketId> Deposit(PushRequest* request, std::vector<Ready>* ready)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes the front of the tensor's pushes, if nobody has it.
  static void TakeReady(Tensor* tensor, std::vector<Ready>* ready);
  // Encodes or copies its data to where the daemon can read it, if it is not there; bytes written.
  uint64_t PutInPlace(const Ready& ready, bandoneon::host::Push* push) const;
  // Bytes that a push may have to be put into.
  size_t StagingBytes(const TensorDeclaration& tensor) const;
  bool IsEncoded(const TensorDeclaration& tensor) const;
  // Puts their data where the daemon can read it, and tells it.
  void SendPushes(std::span<const Ready> pushes);

  // The daemon's answer, OK or why not. Its data is copied to `out`, whose size it has.
  absl::StatusOr<bandoneon::host::Answer> Ask(bandoneon::host::Call call, absl::Duration timeout,
                                              std::span<std::byte> out = {}) const;
  // A copy of bytes that the daemon can read, and where it is.
  absl::StatusOr<Buffer> Lend(ByteSpan bytes, HostPlace* place) const;

  const Options options_;
  const Clock* const clock_;
  const std::shared_ptr<ShmArena> arena_;
  mutable BufferPool pool_;
  const std::unique_ptr<HostChannel> channel_;
  const FileDescriptor wake_;
  Rank rank_ = 0;  // these three: const after Attach
  int size_ = 0;
  uint64_t run_seed_ = 0;

  mutable Mutex mu_;
  mutable CondVar changed_;
  bool is_welcome_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status over_ ABSL_GUARDED_BY(mu_);  // why nothing more is exchanged
  bool is_leaving_ ABSL_GUARDED_BY(mu_) = false;
  bool has_left_ ABSL_GUARDED_BY(mu_) = false;
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, uint32_t> ids_ ABSL_GUARDED_BY(mu_);
  std::map<uint32_t, Tensor> tensors_ ABSL_GUARDED_BY(mu_);  // by address, while a push is pending
  std::map<TicketId, uint32_t> tensor_of_ ABSL_GUARDED_BY(mu_);
  mutable std::map<uint64_t, Caller*> callers_ ABSL_GUARDED_BY(mu_);
  mutable uint64_t last_call_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t bytes_staged_ ABSL_GUARDED_BY(mu_) = 0;   // copied before a push
  uint64_t bytes_results_ ABSL_GUARDED_BY(mu_) = 0;  // copied after it

  // The receiving thread's.
  PeerLease lease_;                 // of the daemon
  std::optional<LifeSigns> signs_;  // from the welcome on
  std::string ranks_;               // of the daemon, for messages

  Mutex declaring_;  // one declaration at a time; taken before mu_
  TicketTable tickets_;
  std::thread receiver_;
  // What the daemon counts, as it named it.
  std::deque<std::string> texts_;
  std::vector<Metric> daemons_metrics_;
  std::vector<std::unique_ptr<Registry::Source>> metrics_;  // they go first
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_HOST_HOST_CLIENT_H_
