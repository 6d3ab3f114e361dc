#ifndef BANDONEON_COMMON_CLUSTER_SCHEDULER_CALLS_H_
#define BANDONEON_COMMON_CLUSTER_SCHEDULER_CALLS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/cluster/credentials.h"
#include "common/cluster/membership.h"
#include "common/cluster/scheduler_client.h"

namespace grpc {
class ClientContext;
class Status;
}  // namespace grpc
namespace bandoneon::control {
class AcknowledgeRequest;
class BarrierReply;
class BarrierRequest;
class Caller;
class CataloguePiece;
class CatalogueRequest;
class DeclareReply;
class DeclareRequest;
class Event;
class HeartbeatRequest;
class JoinReply;
class JoinRequest;
class LeaveRequest;
class TracePiece;
}  // namespace bandoneon::control

namespace bdn {

// The calls of a node to its scheduler, over one connection. It fills in the caller, ends all calls
// at once, and has waits say in the log what they wait for. Each call blocks. Thread-safe.
//
// Errors are explained, except where a comment says "raw": after Fail they are its failure, after
// Close they are Cancelled, and an Unavailable one names the scheduler's address.
class SchedulerCalls {
 public:
  SchedulerCalls(const std::string& address, const Credentials& credentials, const Clock* clock,
                 const WaitReports& reports);
  ~SchedulerCalls();
  SchedulerCalls(const SchedulerCalls&) = delete;
  SchedulerCalls& operator=(const SchedulerCalls&) = delete;

  const std::string& address() const { return address_; }
  bool IsConnected() const;

  // Joins. The error is raw. Logs at `*report`, which it moves on, which nodes it waits for.
  // Cancelled where there is no connection by `connected_by`.
  absl::Status Join(const bandoneon::control::JoinRequest& request, absl::Duration timeout,
                    absl::Time connected_by, absl::Time* report,
                    bandoneon::control::JoinReply* reply);
  // Explains a raw error of Join to the node that wanted to join.
  absl::Status ExplainJoin(const absl::Status& error, absl::Duration waited);

  // Sets the caller of all calls from the join on, and the time for which a scheduler that has gone
  // may be waited for; SetCaller fills the caller into a request.
  void SetSelf(NodeId node, uint64_t incarnation, absl::Duration scheduler_timeout);
  void SetCaller(bandoneon::control::Caller* caller) const;

  // These wait for other nodes, and log that after every interval.
  absl::Status Declare(const bandoneon::control::DeclareRequest& request, absl::Duration timeout,
                       bandoneon::control::DeclareReply* reply);
  absl::Status Barrier(const bandoneon::control::BarrierRequest& request, absl::Duration timeout,
                       bandoneon::control::BarrierReply* reply);
  absl::Status Leave(const bandoneon::control::LeaveRequest& request, absl::Duration timeout);

  // These are retried.
  absl::Status Catalogue(const bandoneon::control::CatalogueRequest& request, absl::Time deadline,
                         bandoneon::control::CataloguePiece* piece);
  absl::Status AcknowledgePlacement(const bandoneon::control::AcknowledgeRequest& request);
  absl::Status UploadTrace(const bandoneon::control::TracePiece& piece, absl::Time deadline);

  // Sends a heartbeat. The error is raw. Without an answer within a part of the time it is sent
  // once more, over a new connection: after a link was cut, TCP may wait as long again before it
  // sends, and a new connection need not. A new connection that was answered is used for the next
  // heartbeats, too. Where the first connection, on which all other calls wait, stays
  // dead for long, they are made again over the one that is answered, if the scheduler keeps a
  // journal; else Aborted.
  absl::Status Heartbeat(const bandoneon::control::HeartbeatRequest& request,
                         absl::Duration timeout);
  // Hands the stream's events to `deliver` until the stream ends, or `deliver` fails, which is then
  // the failure of all calls. The error is raw.
  absl::Status Watch(absl::FunctionRef<absl::Status(const bandoneon::control::Event&)> deliver);

  // Repeats `attempt`, which must be harmless to repeat, while the scheduler cannot be reached.
  absl::Status Retry(absl::Time deadline, const std::function<absl::Status()>& attempt);
  // Repeats `attempt` likewise, if the scheduler keeps a journal: one that starts again then
  // answers. Each attempt is given the time that is left.
  absl::Status RetryAtReturn(absl::Time deadline,
                             const std::function<absl::Status(absl::Duration left)>& attempt);
  // Waits until that time. Returns false, at once, when this node's part in the job is over.
  bool WaitInJob(absl::Time until);
  // Waits likewise until it is time for another attempt at a call that a broken connection ended.
  bool WaitToRetry();

  // Ends every call with `failure`. Does nothing once the node has left, or after Close or another
  // failure.
  void Fail(const absl::Status& failure);
  // Close ends every call; AwaitNone returns once no call is in progress.
  void Close();
  void AwaitNone();

  bool is_closed() const;
  absl::Status failure() const;  // OK where the node left or closed before it heard of a failure

 private:
  class Call;
  struct Stub;
  struct Attempt;

  std::shared_ptr<Stub> stub() const;
  // Makes a call `start` that waits for others, and logs what it waits for.
  template <typename Start, typename Request, typename Reply>
  grpc::Status Await(Start start, const char* what, const Request& request, Call* call,
                     Reply* reply, absl::Time* report,
                     absl::Time connected_by = absl::InfiniteFuture());
  template <typename Start, typename Request, typename Reply>
  absl::Status AwaitOthers(Start start, const char* what, const Request& request,
                           absl::Duration timeout, Reply* reply);
  absl::Status OnHeartbeat(const Attempt& answered, absl::Time begun, absl::Duration timeout);
  absl::Status Explain(const absl::Status& error) const;
  // Returns whether the scheduler keeps a journal, with which another one goes on.
  bool MayReturn() const;
  // Returns gRPC's reason why its last attempt to connect failed.
  std::string WhyUnreachable();
  void Report(const char* what, absl::Duration waited);
  bool IsOver() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return closed_ || left_ || !failure_.ok();
  }
  void CancelAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string address_;
  const Credentials credentials_;
  const Clock* const clock_;
  const WaitReports reports_;

  mutable Mutex mu_;
  CondVar changed_;
  CondVar no_calls_;
  // The connection of all calls.
  std::shared_ptr<Stub> stub_ ABSL_GUARDED_BY(mu_);
  // A connection that was answered where stub_ was not; null: not needed.
  std::shared_ptr<Stub> spare_ ABSL_GUARDED_BY(mu_);
  // When the silence of stub_ began, while there is a spare.
  absl::Time silent_since_ ABSL_GUARDED_BY(mu_);
  NodeId node_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t incarnation_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Duration scheduler_timeout_ ABSL_GUARDED_BY(mu_) = absl::ZeroDuration();
  bool left_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  std::set<grpc::ClientContext*> contexts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_SCHEDULER_CALLS_H_
