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
#include "common/cluster/control_plane.h"
#include "common/cluster/membership.h"
#include "common/wire/frame.h"

namespace bdn {

// The counters of a request table.
struct RequestStats {
  uint64_t probes_sent = 0;
  uint64_t resends = 0;         // of pushes, inits and fetches
  uint64_t reconnects = 0;      // because a server was silent
  uint64_t frames_dropped = 0;  // answers to no open request
};

// A table of a worker's open requests to the servers, at most one for each key. It sends them,
// probes when an answer is late, sends the same bytes again when a server has lost them, and ends
// every request with an answer or with an error that names the nodes for which it waited. A state
// machine: no thread, clock or socket; copyable; not thread-safe.
class RequestTable {
 public:
  struct Options {
    NodeId self = 0;
    Rank rank = 0;
    // The number of processes that push through each worker, for errors; empty: one each.
    std::vector<int> processes;
    std::string job_id;
    std::string token;  // shown to servers: the job's data secret
    absl::Duration probe_interval = absl::Seconds(1);
    // How long one request may wait for an answer that its server owes. The time does not run while
    // the server says that it waits for other workers.
    absl::Duration timeout = absl::Minutes(30);
  };
  struct Request {
    Frame frame;        // a push, an init, a fetch or a report; the table fills in sender and epoch
    NodeId server = 0;  // the key's home; the membership says which server answers for it
    uint32_t catalogue_version = 0;
    std::string tensor;        // for errors
    Rank root = -1;            // of a fetch: the rank that sets what it asks for; -1: none
    bool of_exchange = false;  // it may end unknown: see Outcome::is_unknown
    bool is_patient = false;   // it never ends for having been sent again too often
    // Limits the wait for the answer, if it is less than the timeout of the options. After the
    // server says that it waits for others, the options' timeout begins.
    absl::Duration timeout = absl::InfiniteDuration();
  };
  struct Outgoing {
    NodeId server;
    Frame frame;
    // The id of the open request whose own frame this is; 0 for a hello or a probe.
    uint64_t request = 0;
  };
  // The end of a request.
  struct Outcome {
    // A reply (its payload not yet checked), a value (its payload checked), or the error.
    absl::StatusOr<Frame> frame;
    // True: there is no frame, because none came in time or the request was sent in vain too often.
    // The server may have counted the request all the same, and a caller that must know asks again.
    // Only for a request `of_exchange`, whose caller gets the code Unknown, which no other error
    // has.
    bool is_unknown = false;
  };
  struct Answer {
    Key key;
    Step step;
    Outcome outcome;
  };
  // The actions that an event asks of the caller, in this order. Reconnects: these servers are
  // silent; connect to them anew, and drop frames that still come on the old connections. Sends:
  // call OnSent once the frame is out. Answers: one for each request, at its end.
  struct Actions {
    absl::InlinedVector<NodeId, 1> reconnects;
    absl::InlinedVector<Outgoing, 1> sends;
    absl::InlinedVector<Answer, 1> answers;
  };

  explicit RequestTable(const Options& options) : options_(options) {}

  // Sets a newer membership; an older or equal epoch is ignored. New servers are greeted, and
  // requests to them wait for the answer. Open requests are sent again under the new epoch.
  Actions SetMembership(std::shared_ptr<const Membership> membership, absl::Time now);
  // Opens a request. AlreadyExists: the key has an open request; then nothing has changed.
  absl::StatusOr<Actions> Submit(Request request, absl::Time now);
  // Forgets a request whose caller has gone: it ends without an answer. Returns false if it is not
  // open.
  bool Withdraw(Key key, Step step);
  Actions OnFrame(NodeId server, const Frame& frame, absl::Time now);
  // Notes that the frame of this request is out. Returns false if the request is over, or `request`
  // is 0.
  bool OnSent(Key key, uint64_t request, absl::Time now);
  // Carries out the work that is due.
  Actions OnTick(absl::Time now);
  // Returns when OnTick has work next. The time may be a little too early, never too late.
  absl::Time NextTick() const {
    return agenda_.empty() ? hellos_due_ : std::min(hellos_due_, agenda_.begin()->first);
  }
  // Ends every open and future request with `status`.
  Actions Fail(const absl::Status& status);

  // Returns the servers that do not answer this worker's questions, and for how long; by rank.
  std::vector<NodeWait> Unheard(absl::Time now) const;
  // Returns the servers that have never sent anything, by id.
  std::vector<NodeId> Silent() const;
  const absl::Status& failed() const { return failed_; }

  // Returns the nodes for which the key's request waits: "worker 1, worker 3" or "server 0"; ""
  // when none is open.
  std::string WaitingFor(Key key) const;
  bool IsOpen(Key key) const { return open_.contains(key); }
  // Returns whether the key's server has said that it has the open request and waits for others.
  bool IsAccepted(Key key) const;
  const RequestStats& stats() const { return stats_; }
  // Returns the state without its times, for tests that search states: equal texts behave alike but
  // for the time.
  std::string Fingerprint() const;

 private:
  struct Open {
    Request request;
    uint64_t id;  // never used again
    absl::Time deadline;
    absl::Time planned;  // its entry in agenda_; never after NextTime()
    // The time of its next probe, or of its next send if `resend`. Changed by SetDue alone.
    absl::Time due = absl::InfiniteFuture();
    absl::Duration interval;  // until its next probe
    bool resend = false;
    bool accepted = false;  // the server has it, and waits for others
    int payload_losses = 0;
    // The number of times that the server could not take it, so that the same bytes were sent
    // again.
    int retries = 0;
    int unanswered_probes = 0;  // probes sent since the server was last heard
    uint64_t frames_heard = 0;  // the server's Peer::frames_heard at the last probe
    int probes_put_off = 0;     // how often in a row its probe was put off
    // The server's Peer::results_heard when its probe was last due, or its frame sent.
    uint64_t results_heard = 0;
    std::vector<Rank> missing;  // the ranks for which the server waits, as it last said

    absl::Time NextTime() const { return std::min(due, deadline); }
  };
  // The first pause between two hellos; later ones are twice as long each, up to probe_interval.
  static constexpr absl::Duration kFirstHelloInterval = absl::Milliseconds(10);
  // The number of hellos or probes in a row that may stay unanswered before a reconnect.
  static constexpr int kPatience = 3;
  // The most times in a row that a probe is put off while other results arrive.
  static constexpr int kMostPutOff = 8;
  struct Peer {
    Rank rank = 0;
    absl::Duration hello_interval = kFirstHelloInterval;
    bool is_open = false;   // it has answered our hello
    bool was_open = false;  // it has answered one, ever
    absl::Time hello_due = absl::InfiniteFuture();
    uint64_t frames_heard = 0;
    uint64_t results_heard = 0;  // replies and values among frames_heard
    int unanswered_hellos = 0;   // at the longest interval, since it was last heard
    int patience = kPatience;    // unanswered hellos or probes before the next reconnect
    // The last hello or probe, what was heard until then, and the time that has passed since the
    // first of those in a row that have no answer. A time in which this process itself stood still
    // counts at most once.
    absl::Time asked = absl::InfinitePast();
    uint64_t heard_when_asked = 0;
    absl::Duration unheard = absl::ZeroDuration();
  };
  using OpenMap = std::map<Key, Open>;

  // Returns the server that answers for the request's key now; 0: none.
  NodeId ServerOf(const Request& request) const {
    return membership_->OwnerOf(request.frame.header.key, request.server).server;
  }
  void NoteAsked(absl::Time now, Peer* peer) const;
  void SayHello(NodeId server, Peer* peer, absl::Time now, Actions* actions);
  void Reconnect(NodeId server, Peer* peer, absl::Time now, Actions* actions);
  void SendRequest(Open* open, Actions* actions);
  void SendProbe(Open* open, absl::Time now, Actions* actions);
  void Send(const Request& request, Frame frame, uint64_t id, Actions* actions);
  void OnHello(NodeId server, Actions* actions);
  void OnError(NodeId server, const Frame& frame, absl::Time now, Actions* actions);
  void OnWaiting(const Frame& frame, OpenMap::iterator open, absl::Time now, Actions* actions);
  OpenMap::iterator FindOpen(NodeId server, const FrameHeader& answer);
  void OnResult(const Frame& frame, OpenMap::iterator open, absl::Time now, Actions* actions);
  // Changes `due`, and moves the agenda's entry forward if needed. Every change of `due` is made
  // here.
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
  // The time at which each open request is looked at. Most requests end before that, so an entry
  // whose request is put off is moved only when its time has come.
  absl::btree_set<std::pair<absl::Time, Key>> agenda_;
  absl::Time hellos_due_ = absl::InfiniteFuture();  // not after the first hello that is due
  absl::Status failed_;
  RequestStats stats_;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_PIPELINE_REQUEST_TABLE_H_
