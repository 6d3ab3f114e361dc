#ifndef BANDONEON_SCHEDULER_WATCH_STREAM_H_
#define BANDONEON_SCHEDULER_WATCH_STREAM_H_

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "scheduler/dump_calls.h"
#include "scheduler/server_call.h"

namespace bdn {

class WatchStream;

// The streams of all nodes that watch, and the lock that guards them and all that belongs to them.
// Thread-safe. Outlives the streams.
class WatchStreams {
 public:
  // Borrows both.
  WatchStreams(ServiceCore* core, const DumpCalls* dumps) : core_(core), dumps_(dumps) {}

  // Tells the streams that something has changed that nodes of this role are told.
  void Step(Role role);
  // Waits, at the end of a job, until every node was told how it ended for it: that it failed, or
  // went on without the node. That includes the nodes of a job that has begun whose stream has yet
  // to come. Nodes whose stream has ended, and those that have left, are not waited for. Returns
  // false when `timeout` passed.
  bool AwaitNodesTold(absl::Duration timeout);

 private:
  friend class WatchStream;

  // Returns whether some node may not have heard of the failure; `nodes` are those of the job.
  bool OwesEnd(const std::vector<NodeId>& nodes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  ServiceCore* const core_;
  const DumpCalls* const dumps_;
  Mutex mu_;  // taken before JobHost's own lock, and before that of the orders of a dump
  CondVar changed_;
  std::map<Role, std::set<WatchStream*>> accepted_ ABSL_GUARDED_BY(mu_);  // by the node's role
  std::set<NodeId> watchers_ ABSL_GUARDED_BY(mu_);  // nodes that have or had a stream
};

// One node's stream of events. Level-triggered: it compares what the node was told with the present
// state, so that a slow node skips states and nothing queues up. Its calls are serialised by the
// lock of the streams.
class WatchStream final : public CallHandler {
 public:
  WatchStream(WatchStreams* all, ServerCall* call) : all_(all), core_(all->core_), call_(call) {}
  ~WatchStream() override;

  void OnRequest(const grpc::ByteBuffer& request) override;
  void OnWritten(bool ok) override;
  void OnDone(bool cancelled) override;

  // Sends the next event if there is one and none is on its way. REQUIRES: the lock of the streams
  // is held.
  void Step();
  // Returns whether the end of the job has still to reach this node. REQUIRES: as Step.
  bool owes_end() const { return !finishing_ && !(sent_.failure && !writing_); }

 private:
  // The facts that the node was told so far.
  struct Sent {
    std::shared_ptr<const Membership> membership;
    PlacementVersion placed;
    size_t leaving = 0;
    int candidates = 0;
    bool failure = false;
    bool done = false;
    uint64_t dump = 0;  // the number of the order to send records
  };

  bool NextEvent(const Job::View& view, bandoneon::control::Event* event);
  void Finish(const absl::Status& status);

  WatchStreams* const all_;
  ServiceCore* const core_;
  ServerCall* const call_;
  bandoneon::control::Caller caller_;

  // These are guarded by the lock of the streams.
  Role role_ = Role::kWorker;
  bool accepted_ = false;  // the stream is a node's of this job
  bool writing_ = false;
  bool finishing_ = false;
  bool over_ = false;  // the notice of the end has come
  Sent sent_;
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_WATCH_STREAM_H_
