#ifndef BANDONEON_WORKER_PIPELINE_REQUEST_RUNNER_H_
#define BANDONEON_WORKER_PIPELINE_REQUEST_RUNNER_H_

#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/mutex.h"
#include "common/transport/transport.h"
#include "worker/pipeline/request_table.h"

namespace bdn {

// The RequestTable with a lock, a clock and a transport. Callers run it on their own threads (no
// hand-over on the way of a frame); a thread of its own only waits for what falls due. Thread-safe.
class RequestRunner final : private RequestTable::Output {
 public:
  // Runs on the transport's threads, the runner's, or the caller's of Submit and Fail; never under
  // the runner's lock.
  using CompleteFn = std::function<void(Key key, Step step, absl::StatusOr<Frame> answer)>;

  // `transport` is borrowed and must be started with OnFrame. Before the runner goes it must be
  // closed and joined, after the last call that may send.
  RequestRunner(const RequestTable::Options& options, Transport* transport, CompleteFn complete);
  ~RequestRunner() override;
  RequestRunner(const RequestRunner&) = delete;
  RequestRunner& operator=(const RequestRunner&) = delete;

  // Connects to servers not known yet. The error names the address.
  absl::Status SetMembership(std::shared_ptr<const Membership> membership);
  // `sent` runs once, when the request's payload has gone out for the first time or its answer is
  // here, whichever is first: then it no longer counts against a budget.
  absl::Status Submit(RequestTable::Request request, std::function<void()> sent);
  // The request's asker has gone; it must have had no `sent`.
  // False: its answer has been or is being delivered.
  bool Withdraw(Key key, Step step);
  void OnFrame(ConnectionId from, const Frame& frame);
  void Fail(const absl::Status& status);
  // Ends the thread that waits for what falls due. Idempotent.
  void Stop();
  std::string WaitingFor(Key key) const;
  bool IsAccepted(Key key) const;
  RequestStats stats() const;

 private:
  struct Outgoing {
    NodeId server;
    Frame frame;
  };
  struct Answer {
    Key key;
    Step step;
    absl::StatusOr<Frame> frame;
  };
  // What the state machine asked for, done after the lock is gone.
  struct Actions {
    std::vector<Outgoing> sends;
    std::vector<Answer> answers;
    std::vector<std::function<void()>> sent;
  };

  void Send(NodeId server, Frame frame) override;
  void Complete(Key key, Step step, absl::StatusOr<Frame> answer) override;
  Actions TakeActions() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Perform(Actions actions);
  void OnSendDone(NodeId server, Key key, Step step);
  void Run();

  Transport* const transport_;
  const CompleteFn complete_;

  mutable Mutex mu_;
  CondVar wake_;
  RequestTable requests_ ABSL_GUARDED_BY(mu_);
  Actions actions_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<Key, std::function<void()>> on_sent_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<NodeId, ConnectionId> connections_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<ConnectionId, NodeId> nodes_ ABSL_GUARDED_BY(mu_);
  // What the timer thread waits for; nothing earlier may go unsignalled.
  absl::Time sleeping_until_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread timer_;  // last: starts when everything above is there
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_PIPELINE_REQUEST_RUNNER_H_
