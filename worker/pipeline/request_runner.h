#ifndef BANDONEON_WORKER_PIPELINE_REQUEST_RUNNER_H_
#define BANDONEON_WORKER_PIPELINE_REQUEST_RUNNER_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/telemetry/stage_times.h"
#include "common/transport/transport.h"
#include "worker/pipeline/request_table.h"

namespace bdn {

// The RequestTable with a lock, a clock and a transport. Callers run it on their own threads (no
// hand-over on the way of a frame); a thread of its own only waits for what falls due. Thread-safe.
class RequestRunner {
 public:
  // What is told of one request, each at most once and never under the runner's lock: on the
  // transport's threads, the runner's, or the caller's of Submit and Fail.
  struct Callbacks {
    // May be null. The request's payload has gone out for the first time, or its answer is here,
    // whichever is first: then it no longer counts against a budget.
    std::function<void()> sent;
    std::function<void(RequestTable::Outcome outcome)> answered;
  };

  // All are borrowed. The transport must be started with OnFrame. Before the runner goes it must be
  // closed and joined, after the last call that may send. `stages`, unless null, counts how long
  // requests with a `sent` take until then and until their answer.
  RequestRunner(const RequestTable::Options& options, Transport* transport, const Clock* clock,
                StageTimes* stages = nullptr);
  ~RequestRunner();
  RequestRunner(const RequestRunner&) = delete;
  RequestRunner& operator=(const RequestRunner&) = delete;

  // Connects to servers not known yet. The error names the address.
  absl::Status SetMembership(std::shared_ptr<const Membership> membership);
  // Waits until every server of the membership has said something: the way there and back is open.
  // Warns of one that does not for some seconds. Unavailable names one that has not until
  // `deadline`, its addresses and what to look at.
  absl::Status AwaitServers(absl::Time deadline);
  // AlreadyExists, and no callback runs, when the key has an open request.
  absl::Status Submit(RequestTable::Request request, Callbacks callbacks);
  // The request's asker has gone: no callback runs any more. It must have had no `sent`.
  // False: its answer has been or is being delivered.
  bool Withdraw(Key key, Step step);
  void OnFrame(ConnectionId from, Frame frame);
  // How long a request that says nothing of it waits for its answer.
  absl::Duration timeout() const { return timeout_; }
  // Whether what is sent is best made with a checksum.
  bool needs_checksums() const { return transport_->needs_checksums(); }
  // Ends every open and future request with `status`.
  void Fail(const absl::Status& status);
  // Ends the thread that waits for what falls due. Idempotent.
  void Stop();
  std::string WaitingFor(Key key) const;
  bool IsAccepted(Key key) const;
  RequestStats stats() const;

 private:
  struct Open {
    Callbacks callbacks;
    uint64_t payload_bytes = 0;
    StageSpan span;  // of the stage that it is in
  };
  // What the table asked for, with the callbacks that it concerns: done after the lock is gone.
  struct Work {
    struct Send {
      ConnectionId to;
      Frame frame;
      uint64_t request;
    };
    struct End {
      Callbacks callbacks;
      RequestTable::Outcome outcome;
    };
    std::vector<NodeInfo> reconnects;
    absl::InlinedVector<Send, 1> sends;
    absl::InlinedVector<End, 1> ends;
  };

  Work Prepare(RequestTable::Actions actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Perform(Work work);
  // The request is sent: what is to be told then, if it was not told yet.
  std::function<void()> TakeSent(Open* open) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Frames of the old connection are dropped from then on.
  void Reconnect(const NodeInfo& server);
  absl::StatusOr<ConnectionId> Connect(const NodeInfo& server);
  void OnSendDone(Key key, uint64_t request);
  void Run();

  Transport* const transport_;
  const std::string secret_;
  const absl::Duration timeout_;
  const Clock* const clock_;
  StageTimes* const stages_;

  mutable Mutex mu_;
  CondVar wake_;
  CondVar heard_;  // a server, or the end
  RequestTable table_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<Key, Open> open_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<NodeId, ConnectionId> connections_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<NodeId, NodeInfo> servers_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<ConnectionId, NodeId> nodes_ ABSL_GUARDED_BY(mu_);
  // What the timer thread waits for; nothing earlier may go unsignalled.
  absl::Time sleeping_until_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread timer_;  // last: starts when everything above is there
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_PIPELINE_REQUEST_RUNNER_H_
