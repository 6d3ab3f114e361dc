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

// The tensors of a process that takes part through its host's daemon, and their pushes: of each
// tensor the daemon has one at a time, and the others wait for it. What a push pushes is read where
// it lies if that is memory of the arena, and is copied into such memory once if not; each result
// is copied once, from where the daemon decoded it for all. Knows as well whether the process still
// takes part in the job. Thread-safe.
class AttachedPushes {
 public:
  // All are borrowed. `codec` is that by which pushes go within the host; null: as they are.
  // `arena` is the memory that the daemon may read.
  AttachedPushes(std::shared_ptr<const Codec> codec, std::shared_ptr<ShmArena> arena,
                 DaemonChannel* channel, const Clock* clock);
  AttachedPushes(const AttachedPushes&) = delete;
  AttachedPushes& operator=(const AttachedPushes&) = delete;

  // ---- Taking part

  // OK: something new may be asked. FailedPrecondition: the process is leaving; else why the job is
  // over.
  absl::Status Check() const ABSL_LOCKS_EXCLUDED(mu_);
  // The process is leaving, and takes nothing new. Else why the job is over.
  absl::Status BeginLeaving();
  // It does not leave, unless the job is over.
  void EndLeaving();

  // ---- Tensors

  // Makes the declarations canonical, and returns those that are new. InvalidArgument: one was
  // declared with other facts.
  absl::StatusOr<std::vector<TensorDeclaration>> FindNew(
      std::vector<TensorDeclaration>* tensors) const;
  // Adds those of the tensors that are new, `fresh`, as the daemon has declared them, and returns
  // the ids of all.
  absl::StatusOr<std::vector<uint32_t>> Add(std::span<const TensorDeclaration> tensors,
                                            std::vector<TensorDeclaration> fresh,
                                            const bandoneon::host::Answer& declared);
  // See Client.
  absl::StatusOr<TensorFacts> FactsOf(uint32_t tensor) const;
  absl::Status Retire(std::span<const uint32_t> tensors);
  // Checks a call about state, and answers it if it is about the step.
  absl::Status CheckState(StateCall* call) const;
  // The tensor's next push will be step + 1. NotFound: it was retired.
  absl::Status SetStep(uint32_t tensor, Step step);

  // ---- Pushes

  // See Client.
  absl::Status PushPullAll(std::span<PushRequest> requests, std::vector<TicketId>* tickets);
  TicketTable& tickets() { return tickets_; }

  uint64_t bytes_staged() const;   // copied before a push
  uint64_t bytes_results() const;  // copied after it
  uint64_t num_tickets_ended() const { return tickets_.num_ended(); }

  // Handlers of the channel.
  absl::Status OnEnded(const bandoneon::host::Ended& ended);
  void Fail(const absl::Status& status);

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

  absl::Status CheckLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
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
  void CopyResult(const Tensor& tensor, const Pending& pending,
                  const bandoneon::host::Ended& ended);

  const std::shared_ptr<const Codec> codec_;
  const std::shared_ptr<ShmArena> arena_;
  DaemonChannel* const channel_;

  mutable Mutex mu_;
  absl::Status over_ ABSL_GUARDED_BY(mu_);  // why nothing more is exchanged
  bool is_leaving_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, uint32_t> ids_ ABSL_GUARDED_BY(mu_);
  std::map<uint32_t, Tensor> tensors_ ABSL_GUARDED_BY(mu_);  // by address, while a push is pending
  std::map<TicketId, uint32_t> tensor_of_ ABSL_GUARDED_BY(mu_);
  uint64_t bytes_staged_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t bytes_results_ ABSL_GUARDED_BY(mu_) = 0;
  TicketTable tickets_;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_HOST_ATTACHED_PUSHES_H_
