#ifndef BANDONEON_WORKER_PIPELINE_REQUEST_RUNNER_H_
#define BANDONEON_WORKER_PIPELINE_REQUEST_RUNNER_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/telemetry/history_file.h"
#include "common/telemetry/stage_times.h"
#include "common/telemetry/work_counts.h"
#include "common/transport/transport.h"
#include "link/link_totals.h"
#include "worker/pipeline/recovery_table.h"
#include "worker/pipeline/server_links.h"

namespace bdn {

// A RecoveryTable with a lock, a clock and a transport. Callers run it on their own threads, so
// that a frame's way has no hand-over; a thread of its own only waits for the next due time.
// Thread-safe.
class RequestRunner {
 public:
  // Notifications about one request, each made at most once and never under the runner's lock: on
  // the transport's threads, on the runner's, or on the caller's of Submit and Fail.
  struct Callbacks {
    // May be null. The request's payload has gone out for the first time, or its answer has come,
    // whichever is first: from then on it does not count against a budget.
    std::function<void()> sent;
    std::function<void(RequestTable::Outcome outcome)> answered;
  };

  // All are borrowed. The transport must be started with OnFrame. It must be closed and joined
  // after the last call that may send, and before the runner is destroyed. Unless null, `stages`
  // counts how long requests with a `sent` callback take until that, and from then until their
  // answer; `history` gets the pushes and their results. `connections` is ServerLinks'.
  RequestRunner(const RequestTable::Options& options, Transport* transport, const Clock* clock,
                StageTimes* stages = nullptr, HistoryFile* history = nullptr, int connections = 0);
  ~RequestRunner();
  RequestRunner(const RequestRunner&) = delete;
  RequestRunner& operator=(const RequestRunner&) = delete;

  // Lets keys survive their server (RecoveryTable). To be called before their first request.
  void AddKeys(std::vector<RecoveryTable::KeyFacts> keys);
  // As RecoveryTable.
  void BeginAt(Key key, const KeyPosition& position);
  // Notes that this worker is done with the key.
  void RetireKey(Key key);
  // Connects to servers that are not known yet, and lets go of those that are out. The error names
  // the address.
  absl::Status SetMembership(std::shared_ptr<const Membership> membership);
  // Waits until every server of the membership has sent something, so that both directions are
  // open. Logs a warning if that takes some seconds. Unavailable names a server that was silent
  // until `deadline`, its addresses and what to check.
  absl::Status AwaitServers(absl::Time deadline);
  // Sends a request. AlreadyExists: the key has an open request; then no callback runs.
  absl::Status Submit(RequestTable::Request request, Callbacks callbacks);
  // Forgets a request whose caller has gone: none of its callbacks runs any more. The request must
  // not have a `sent` callback. Returns false if its answer was or is being delivered.
  bool Withdraw(Key key, Step step);
  void OnFrame(ConnectionId from, Frame frame);
  // Returns how long a request without a timeout of its own waits for its answer.
  absl::Duration timeout() const { return timeout_; }
  // Returns whether frames to be sent need a checksum.
  bool needs_checksums() const { return transport_->needs_checksums(); }
  // Ends every open and future request with `status`.
  void Fail(const absl::Status& status);
  // Ends the runner's thread. Idempotent.
  void Stop();
  // As RequestTable.
  std::vector<NodeWait> Unheard() const;
  std::string WaitingFor(Key key) const;
  // Returns the waits for replies that `stages` counts, by server; none where there are more than
  // kMostPeerWaits servers.
  std::vector<PeerWait> ReplyWaits() const;
  // Returns the number of requests that wait for an answer.
  size_t OpenRequests() const;
  bool IsAccepted(Key key) const;
  RequestStats stats() const;
  // Returns what the connections to each server have carried.
  std::vector<LinkTotals> Links() const;
  // Returns the number of connections to all servers.
  size_t Connections() const;
  RecoveryStats recovery_stats() const;

 private:
  struct Open {
    Callbacks callbacks;
    uint64_t payload_bytes = 0;
    bool is_push = false;
    SpanId id;
    bool is_counted = false;  // by stages
    StageSpan begun;          // when the request was made
    StageSpan span;           // of the stage that the request is in
    NodeId server = 0;        // to which it was sent last
    ConnectionId sent_on = 0;
  };
  // The actions that the table asked for, with the callbacks concerned; carried out after the lock
  // is released.
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
  void PrepareSend(RequestTable::Outgoing out, Work* work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Queue(Work::Send send, Work* work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Perform(Work work);
  void PerformSend(Work::Send send);
  // Makes more connections to a server that is so far away that they carry more. Called on the
  // timer's thread alone.
  void LookAt(NodeId server);
  void AddConnection(const NodeInfo& server, ConnectionId first);
  // Ends the wait for a reply, and counts it for the server.
  void NoteReply(const Open& open, uint64_t payload_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Write to the history, if there is one.
  void NotePush(const Frame& push) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteEnd(const RequestTable::Answer& answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the `sent` callback of a request that was just sent, or null if it was called before.
  std::function<void()> TakeSent(Open* open) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Connects to a silent server anew. Frames of the old connection are dropped from then on.
  void Reconnect(const NodeInfo& server);
  absl::StatusOr<ConnectionId> Connect(const NodeInfo& server);
  void OnSendDone(ConnectionId to, uint64_t bytes, Key key, uint64_t request);
  void Run();

  Transport* const transport_;
  const std::string secret_;
  const absl::Duration timeout_;
  const Clock* const clock_;
  StageTimes* const stages_;
  HistoryFile* const history_;

  mutable Mutex mu_;
  CondVar wake_;
  CondVar heard_;  // a server was heard, or the runner has failed
  RecoveryTable table_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<Key, Open> open_ ABSL_GUARDED_BY(mu_);
  ServerLinks links_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<NodeId, NodeInfo> servers_ ABSL_GUARDED_BY(mu_);
  std::vector<NodeId> looks_ ABSL_GUARDED_BY(mu_);  // servers whose connections are to be looked at
  Frame hello_ ABSL_GUARDED_BY(mu_);                // the last one; it is the same for all servers
  std::map<Rank, PeerWait> reply_waits_ ABSL_GUARDED_BY(mu_);
  // The time until which the timer thread sleeps; it must be signalled when something falls due
  // earlier.
  absl::Time sleeping_until_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread timer_;  // declared last: it uses the members above
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_PIPELINE_REQUEST_RUNNER_H_
