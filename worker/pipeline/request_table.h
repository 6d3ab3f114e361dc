#ifndef BANDONEON_WORKER_PIPELINE_REQUEST_TABLE_H_
#define BANDONEON_WORKER_PIPELINE_REQUEST_TABLE_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/cluster/membership.h"
#include "common/wire/frame.h"

namespace bdn {

struct RequestStats {
  uint64_t probes_sent = 0;
  uint64_t resends = 0;         // of pushes, inits and fetches
  uint64_t reconnects = 0;      // because a server was silent
  uint64_t frames_dropped = 0;  // answers that nobody waits for
};

// A worker's open requests to the servers: at most one a key. Sends them, asks again when an
// answer is late, sends the same bytes again when a server has lost them, and ends every request
// with an answer or an error that names whom it waited for. A state machine: no thread, clock or
// socket; copyable; not thread-safe.
class RequestTable {
 public:
  struct Options {
    NodeId self = 0;
    Rank rank = 0;
    std::vector<int> processes;  // that push through each worker, for errors; empty: one each
    std::string job_id;
    std::string token;  // what servers are shown: the job's data secret
    absl::Duration probe_interval = absl::Seconds(1);
    // Of one request, for an answer that its server owes. While the server says that it waits for
    // other workers the time does not run.
    absl::Duration timeout = absl::Minutes(30);
  };
  struct Request {
    Frame frame;  // push, init or fetch; sender and epoch are stamped here
    NodeId server = 0;
    uint32_t catalogue_version = 0;
    std::string tensor;        // for errors
    Rank root = -1;            // fetch: whose value it is
    bool of_exchange = false;  // it may end unknown: Outcome::is_unknown
    bool is_patient = false;   // however often it must be sent again
    // Until the first answer, if less than that of the options.
    absl::Duration timeout = absl::InfiniteDuration();
  };
  struct Outgoing {
    NodeId server;
    Frame frame;
    uint64_t request = 0;  // the open request whose own frame this is; 0 for a hello or a probe
  };
  // How a request ended.
  struct Outcome {
    // A reply (its payload not yet checked), a value (checked), or why there is none.
    absl::StatusOr<Frame> frame;
    // There is none because none came in time, or the request was sent in vain too often. The server may
    // have it all the same, and whoever must know asks again. Only of a request `of_exchange`, whose
    // caller is told so by the code Unknown, which no other error has.
    bool is_unknown = false;
  };
  struct Answer {
    Key key;
    Step step;
    Outcome outcome;
  };
  // What an event makes the caller do, in this order. Reconnects: these servers are silent; connect
  // anew, and drop what still comes on the old connection. Sends: say OnSent once the frame is out.
  // Answers: one for each request, at its end.
  struct Actions {
    absl::InlinedVector<NodeId, 1> reconnects;
    absl::InlinedVector<Outgoing, 1> sends;
    absl::InlinedVector<Answer, 1> answers;
  };

  explicit RequestTable(const Options& options) : options_(options) {}

  // Servers are greeted, and requests to them wait for the answer. Newer epochs only; open
  // requests are sent again under the new one.
  Actions SetMembership(std::shared_ptr<const Membership> membership, absl::Time now);
  // Asks. AlreadyExists, and nothing changed, when the key has an open request.
  absl::StatusOr<Actions> Submit(Request request, absl::Time now);
  // Forgets a request whose asker has gone: it ends without an answer.
  bool Withdraw(Key key, Step step);
  Actions OnFrame(NodeId server, const Frame& frame, absl::Time now);
  // A frame with this `request` is out. False: that is over, or none.
  bool OnSent(Key key, uint64_t request, absl::Time now);
  // Does what is due.
  Actions OnTick(absl::Time now);
  // When OnTick has something to do next; a moment too early is possible, too late is not.
  absl::Time NextTick() const {
    return agenda_.empty() ? hellos_due_ : std::min(hellos_due_, agenda_.begin()->first);
  }
  // Ends every open and future request with `status`.
  Actions Fail(const absl::Status& status);

  // The servers that have never said anything, by id.
  std::vector<NodeId> Silent() const;
  const absl::Status& failed() const { return failed_; }

  // Whom the key's request waits for: "worker 1, worker 3", "server 0"; "" when none is open.
  std::string WaitingFor(Key key) const;
  bool IsOpen(Key key) const { return open_.contains(key); }
  // Whether the key's server has said that it has the open request and waits for others.
  bool IsAccepted(Key key) const;
  const RequestStats& stats() const { return stats_; }
  // The state without its times, for tests that search states: equal texts behave alike but for
  // when.
  std::string Fingerprint() const;

 private:
  struct Open {
    Request request;
    uint64_t id;  // never used again
    absl::Time deadline;
    absl::Time planned;                       // when agenda_ looks at it: not after NextTime()
    absl::Time due = absl::InfiniteFuture();  // of a probe, or of a send when `resend`: SetDue
    absl::Duration interval;                  // until the next probe
    bool resend = false;
    bool accepted = false;  // by the server, which waits for others
    int payload_losses = 0;
    int retries = 0;             // of the same bytes, because the server could not take them
    int unanswered_probes = 0;   // since the server was last heard
    uint64_t frames_heard = 0;   // of the server's, at the first of these
    int probes_put_off = 0;      // one after the other
    uint64_t results_heard = 0;  // of the server's, when one was put off last
    std::vector<Rank> missing;   // as the server last said

    absl::Time NextTime() const { return std::min(due, deadline); }
  };
  static constexpr absl::Duration kFirstHelloInterval = absl::Milliseconds(10);
  static constexpr int kPatience = 3;
  static constexpr int kMostPutOff = 8;
  struct Peer {
    Rank rank = 0;
    absl::Duration hello_interval = kFirstHelloInterval;
    bool is_open = false;  // has answered our hello
    absl::Time hello_due = absl::InfiniteFuture();
    uint64_t frames_heard = 0;
    uint64_t results_heard = 0;  // those of them that bring what was asked for
    int unanswered_hellos = 0;   // at the longest interval, since it was last heard
    int patience = kPatience;  // how many hellos or probes without an answer are no reason to worry
  };
  using OpenMap = std::map<Key, Open>;

  void SayHello(NodeId server, Peer* peer, absl::Time now, Actions* actions);
  void Reconnect(NodeId server, Peer* peer, absl::Time now, Actions* actions);
  void SendRequest(Open* open, Actions* actions);
  void SendProbe(Open* open, absl::Time now, Actions* actions);
  void Send(const Request& request, Frame frame, uint64_t id, Actions* actions);
  void OnHello(NodeId server, Actions* actions);
  void OnError(NodeId server, const Frame& frame, absl::Time now, Actions* actions);
  void OnWaiting(const Frame& frame, Open* open, absl::Time now, Actions* actions);
  OpenMap::iterator FindOpen(NodeId server, const FrameHeader& answer);
  void OnResult(const Frame& frame, OpenMap::iterator open, absl::Time now, Actions* actions);
  // Every change of `due` comes by this.
  void SetDue(Open* open, absl::Time due);
  void Plan(Open* open, absl::Time at);
  void ResendAt(Open* open, absl::Time due);
  void OnDue(OpenMap::iterator open, absl::Time now, Actions* actions);
  void Retry(OpenMap::iterator open, const absl::Status& why, absl::Time now, Actions* actions);
  void GiveUp(OpenMap::iterator open, const absl::Status& why, Actions* actions);
  void EndAll(const absl::Status& status, Actions* actions);
  void End(OpenMap::iterator open, Outcome outcome, Actions* actions);
  absl::Status Describe(const Open& open, const absl::Status& status) const;
  std::string WaitingFor(const Open& open) const;
  std::string ServerName(NodeId server) const;
  void SetHelloDue(Peer* peer, absl::Time due) {
    peer->hello_due = due;
    hellos_due_ = std::min(hellos_due_, due);
  }

  Options options_;
  std::shared_ptr<const Membership> membership_ = std::make_shared<const Membership>();
  std::map<NodeId, Peer> peers_;
  OpenMap open_;
  uint64_t last_id_ = 0;
  // When each open request is looked at. Most end before: what is put off is moved only then.
  absl::btree_set<std::pair<absl::Time, Key>> agenda_;
  absl::Time hellos_due_ = absl::InfiniteFuture();  // the first of them, or before
  absl::Status failed_;
  RequestStats stats_;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_PIPELINE_REQUEST_TABLE_H_
