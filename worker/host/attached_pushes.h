#ifndef BANDONEON_WORKER_HOST_ATTACHED_PUSHES_H_
#define BANDONEON_WORKER_HOST_ATTACHED_PUSHES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "worker/client.h"
#include "worker/host/daemon_channel.h"
#include "worker/ticket_table.h"

namespace bandoneon::host {
class Answer;
class Ended;
class Push;
}  // namespace bandoneon::host

namespace bdn {

// The tensors of a process that takes part through its host daemon, and their pushes. The daemon
// has one push of each tensor at a time, and later ones wait for it. Data to be pushed is read
// where it lies if that is memory of the arena, and is copied into such memory once if not; each
// result is copied once, from the memory into which the daemon decoded it for all processes. It
// also knows whether the process still takes part in the job. Thread-safe.
class AttachedPushes {
 public:
  // `channel` and `clock` are borrowed. `codec` encodes pushes within the host; null: they are not
  // encoded. `arena` is the memory that the daemon may read.
  AttachedPushes(std::shared_ptr<const Codec> codec, std::shared_ptr<ShmArena> arena,
                 DaemonChannel* channel, const Clock* clock);
  AttachedPushes(const AttachedPushes&) = delete;
  AttachedPushes& operator=(const AttachedPushes&) = delete;

  // ---- Taking part

  // OK: new requests may begin. FailedPrecondition: the process is leaving. Else the reason why the
  // job is over.
  absl::Status Check() const ABSL_LOCKS_EXCLUDED(mu_);
  // Begins to leave: new requests are refused. Returns the reason if the job is over already.
  absl::Status BeginLeaving();
  // Ends the attempt to leave: new requests may begin again, unless the job is over.
  void EndLeaving();

  // FailedPrecondition: a push has not ended.
  absl::Status CheckIdle() const;

  // ---- Tensors

  // Makes the declarations canonical, and returns those that are new. InvalidArgument: one was
  // declared before with other facts.
  absl::StatusOr<std::vector<TensorDeclaration>> FindNew(
      std::vector<TensorDeclaration>* tensors) const;
  // Adds the new ones of the tensors, `fresh`, as the daemon has declared them, and returns the ids
  // of all.
  absl::StatusOr<std::vector<uint32_t>> Add(std::span<const TensorDeclaration> tensors,
                                            std::vector<TensorDeclaration> fresh,
                                            const bandoneon::host::Answer& declared);
  // See Client.
  absl::StatusOr<TensorFacts> FactsOf(uint32_t tensor) const;
  absl::Status Retire(std::span<const uint32_t> tensors);
  // Checks a call about state, and answers it if it asks for the step.
  absl::Status CheckState(StateCall* call) const;
  // Sets the tensor's step: its next push will be step + 1. NotFound: it was retired.
  absl::Status SetStep(uint32_t tensor, Step step);

  // ---- Pushes

  // See Client.
  absl::Status PushPullAll(std::span<PushRequest> requests, std::vector<TicketId>* tickets);
  TicketTable& tickets() { return tickets_; }

  uint64_t bytes_staged() const;   // bytes copied or encoded for pushes
  uint64_t bytes_results() const;  // bytes of results copied into callers' tensors
  uint64_t num_tickets_ended() const { return tickets_.num_ended(); }

  // Handlers of the channel: OnEnded takes the end of a push, Fail ends everything.
  absl::Status OnEnded(const bandoneon::host::Ended& ended);
  void Fail(const absl::Status& status);

 private:
  // A push that has not ended: the daemon has it, or it waits for the one before it.
  struct Pending {
    TicketId ticket = 0;
    Step step = 0;
    PushRequest request;
    bool is_taken = false;  // a thread sends it, or has sent it
  };
  // A declared tensor of this process.
  struct Tensor {
    TensorDeclaration declaration;
    // The memory into which the daemon decodes results: float32, or float64.
    HostChannel::Bytes result;
    // Memory of the arena for data that lies elsewhere; null until it is first needed.
    std::byte* staging = nullptr;
    bool keeps_left_out = false;  // its pushes keep a residual or momentum
    bool retired = false;         // it stays here until its push at the daemon has ended
    Step pushed = 0;
    std::deque<std::shared_ptr<Pending>> pending;
  };
  // A push to be sent now.
  struct Ready {
    const Tensor* tensor;
    std::shared_ptr<Pending> pending;
  };

  absl::Status CheckLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // NotFound: the tensor was not declared, or is retired.
  absl::StatusOr<Tensor*> Find(uint32_t tensor) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<const Tensor*> Find(uint32_t tensor) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Removes the tensor and frees its memory if it is retired and the daemon has no push of it.
  void RemoveIfUnused(uint32_t tensor) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<TicketId> Deposit(PushRequest* request, std::vector<Ready>* ready)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes the front of the tensor's pushes for sending, unless it is taken.
  static void TakeReady(Tensor* tensor, std::vector<Ready>* ready);
  // Encodes or copies a push's data to memory that the daemon can read, unless it lies there;
  // returns the bytes written.
  uint64_t PutInPlace(const Ready& ready, bandoneon::host::Push* push) const;
  // Returns the most bytes that a push may need in `staging`.
  size_t StagingBytes(const TensorDeclaration& tensor) const;
  bool IsEncoded(const TensorDeclaration& tensor) const;
  // Puts the pushes' data into memory that the daemon can read, and sends them.
  void SendPushes(std::span<const Ready> pushes);
  void CopyResult(const Tensor& tensor, const Pending& pending,
                  const bandoneon::host::Ended& ended);

  const std::shared_ptr<const Codec> codec_;
  const std::shared_ptr<ShmArena> arena_;
  DaemonChannel* const channel_;

  mutable Mutex mu_;
  absl::Status over_ ABSL_GUARDED_BY(mu_);  // why nothing more is exchanged
  bool is_leaving_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, uint32_t> ids_ ABSL_GUARDED_BY(mu_);
  // Addresses are stable while a push is pending; senders use them without the lock.
  std::map<uint32_t, Tensor> tensors_ ABSL_GUARDED_BY(mu_);
  std::map<TicketId, uint32_t> tensor_of_ ABSL_GUARDED_BY(mu_);
  uint64_t bytes_staged_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t bytes_results_ ABSL_GUARDED_BY(mu_) = 0;
  TicketTable tickets_;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_HOST_ATTACHED_PUSHES_H_
