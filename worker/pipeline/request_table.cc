#include "worker/pipeline/request_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/cluster/worker_names.h"
#include "common/wire/headers.h"
#include "common/wire/message.h"
#include "worker/error_fields.h"

namespace bdn {
namespace {

constexpr int kMaxPayloadLosses = 8;
constexpr int kMaxProbeBackoff = 8;  // times the probe interval
// A server gets at least so many probes within the time that it has for an answer.
constexpr int kLeastQuestions = 4;
// A request that its server cannot take yet is sent again after this delay, which doubles each
// time: with the usual probe interval for half a minute in all.
constexpr absl::Duration kRetryDelay = absl::Milliseconds(20);
constexpr int kMaxRetries = 12;
// The most probe intervals that count as unheard between two questions.
constexpr int kMostUnheardAtOnce = 4;
// The most hellos or probes between two connections to a silent server.
constexpr int kMaxPatience = 48;

// Replaces the code Unknown of a server's error: callers take that code for a request that the
// table has given up (Outcome::is_unknown).
absl::Status NotUnknown(const absl::Status& status) {
  return absl::IsUnknown(status) ? Internal("%s", status.message()) : status;
}

bool IsAnswer(FrameType request, FrameType answer) {
  if (request == FrameType::kReport) return answer == FrameType::kRebuild;
  return answer == (request == FrameType::kFetch ? FrameType::kValue : FrameType::kReply);
}

}  // namespace

RequestTable::Actions RequestTable::SetMembership(std::shared_ptr<const Membership> membership,
                                                  absl::Time now) {
  Actions actions;
  if (membership->epoch <= membership_->epoch) return actions;
  membership_ = std::move(membership);
  // A server that is out says nothing that counts.
  std::erase_if(peers_,
                [this](const auto& peer) { return membership_->Find(peer.first) == nullptr; });
  for (const NodeInfo& server : membership_->servers) {
    const auto [peer, is_new] = peers_.try_emplace(server.id);
    peer->second.rank = server.rank;
    if (is_new) SayHello(server.id, &peer->second, now, &actions);
  }
  for (auto& [key, open] : open_) {
    // Refusals of the old epoch say nothing about the new one. Servers have emptied their open
    // rounds, so every request is sent again, not only probed.
    open.retries = 0;
    SendRequest(&open, &actions);
  }
  return actions;
}

void RequestTable::NoteAsked(absl::Time now, Peer* peer) const {
  const bool has_answered = peer->frames_heard != peer->heard_when_asked;
  if (has_answered || peer->asked == absl::InfinitePast()) {
    peer->unheard = absl::ZeroDuration();
  } else {
    peer->unheard += std::min(now - peer->asked, kMostUnheardAtOnce * options_.probe_interval);
  }
  peer->asked = now;
  peer->heard_when_asked = peer->frames_heard;
}

std::vector<NodeWait> RequestTable::Unheard(absl::Time now) const {
  std::vector<NodeWait> unheard;
  for (const auto& [node, peer] : peers_) {
    // Nothing is asked of a server once nothing is wanted of it.
    const bool is_asked = now - peer.asked <= 2 * kMaxProbeBackoff * options_.probe_interval;
    const bool has_answered = peer.frames_heard != peer.heard_when_asked;
    const bool counts = is_asked && !has_answered && peer.unheard > 2 * options_.probe_interval;
    if (counts) unheard.push_back({node, peer.unheard});
  }
  std::ranges::sort(unheard, {}, &NodeWait::node);
  return unheard;
}

void RequestTable::SayHello(NodeId server, Peer* peer, absl::Time now, Actions* actions) {
  // A server does not hear hellos before its job has begun, so the pauses are short at first, and
  // double. Until a hello is answered, requests wait: a server would refuse them.
  peer->is_open = false;
  // Only hellos at the longest interval count as a sign of silence; the first, short intervals are
  // expected to pass without an answer.
  if (peer->hello_interval == options_.probe_interval) {
    ++peer->unanswered_hellos;
    NoteAsked(now, peer);
  }
  peer->hello_interval = std::min(peer->hello_interval * 2, options_.probe_interval);
  SetHelloDue(peer, now + peer->hello_interval);
  Buffer hello = EncodeHello({.job_id = options_.job_id,
                              .node = options_.self,
                              .role = Role::kWorker,
                              .token = options_.token});
  actions->sends.push_back({server, MakeFrame(HelloHeader(options_.self), std::move(hello))});
}

// Asks for a new connection: a network may have forgotten the old one without telling either end.
// The next hello is the first frame on the new connection, and open requests follow its answer.
// Patience doubles, so that a server that is down does not cause a connection every few seconds.
void RequestTable::Reconnect(NodeId server, Peer* peer, absl::Time now, Actions* actions) {
  ++stats_.reconnects;
  actions->reconnects.push_back(server);
  peer->is_open = false;
  peer->unanswered_hellos = 0;
  peer->patience = std::min(peer->patience * 2, kMaxPatience);
  SetHelloDue(peer, now);
}

absl::StatusOr<RequestTable::Actions> RequestTable::Submit(Request request, absl::Time now) {
  Actions actions;
  const Key key = request.frame.header.key;
  const Step step = request.frame.header.step;
  if (open_.contains(key)) return AlreadyExists("key %s has an open request", key.ToString());
  const absl::Time deadline = now + std::min(request.timeout, options_.timeout);
  Open open{.request = std::move(request),
            .id = ++last_id_,
            .deadline = deadline,
            .planned = std::min(deadline, now + options_.probe_interval),
            // With a short timeout, too, some probes must fit in before the request is given up.
            .interval = std::min(options_.probe_interval, options_.timeout / kLeastQuestions)};
  if (!failed_.ok()) {
    actions.answers.push_back({key, step, {Describe(open, failed_)}});
    return actions;
  }
  agenda_.insert({open.planned, key});
  SendRequest(&open_.emplace(key, std::move(open)).first->second, &actions);
  return actions;
}

bool RequestTable::Withdraw(Key key, Step step) {
  const auto found = open_.find(key);
  if (found == open_.end() || found->second.request.frame.header.step != step) return false;
  agenda_.erase({found->second.planned, key});
  open_.erase(found);
  return true;
}

// Returns the open request that a frame from `server` is about. A late answer to an earlier request
// of the same key must not end this one.
RequestTable::OpenMap::iterator RequestTable::FindOpen(NodeId server, const FrameHeader& answer) {
  const auto found = open_.find(answer.key);
  if (found == open_.end()) return found;
  const FrameHeader& asked = found->second.request.frame.header;
  const bool is_its = ServerOf(found->second.request) == server && asked.step == answer.step &&
                      asked.request == answer.request;
  return is_its ? found : open_.end();
}

// Sends the request's own frame. No probe is due before the transport says that the frame is out:
// on a slow link a frame is late, not lost, and a probe would only wait behind it.
void RequestTable::SendRequest(Open* open, Actions* actions) {
  open->resend = false;
  open->accepted = false;
  SetDue(open, absl::InfiniteFuture());
  const auto peer = peers_.find(ServerOf(open->request));
  if (peer == peers_.end() || !peer->second.is_open) return;  // OnHello sends it
  open->results_heard = peer->second.results_heard;
  Send(open->request, open->request.frame, open->id, actions);
}

void RequestTable::SendProbe(Open* open, absl::Time now, Actions* actions) {
  const auto found = peers_.find(ServerOf(open->request));
  SetDue(open, absl::InfiniteFuture());
  if (found == peers_.end() || !found->second.is_open) return;  // OnHello sends the request
  Peer& peer = found->second;
  // Rule 1: no probe while other results arrive. Results come over a slow link one after the other,
  // and a probe now would bring this one twice. The request itself may have been lost, though, so
  // its probe is put off only so many times in a row (kMostPutOff), and only while the deadline
  // leaves time for one.
  if (std::exchange(open->results_heard, peer.results_heard) != peer.results_heard &&
      open->probes_put_off < kMostPutOff && now + 2 * open->interval < open->deadline) {
    ++open->probes_put_off;
    return SetDue(open, now + open->interval);
  }
  open->probes_put_off = 0;
  // Rule 2: only silence counts. A server that says anything is reached by this connection, and a
  // probe of one key may be late behind the answers about others; a connection that a network has
  // forgotten brings nothing.
  if (open->frames_heard != peer.frames_heard) open->unanswered_probes = 0;
  open->frames_heard = peer.frames_heard;
  if (++open->unanswered_probes > peer.patience) {
    return Reconnect(found->first, &peer, now, actions);
  }
  // Rule 3: probes become rarer, since the usual cause of a late answer is another worker that is
  // slow. They stay frequent enough for kLeastQuestions within the timeout.
  open->interval = std::min({open->interval * 2, options_.probe_interval * kMaxProbeBackoff,
                             options_.timeout / kLeastQuestions});
  const std::optional<FrameHeader> probe = ProbeFor(open->request.frame.header);
  // Rule 4: the init of a tensor's state has no probe, because a server answers it at once: if no
  // answer comes, it is sent again whole.
  if (!probe.has_value()) {
    ++stats_.resends;
    return SendRequest(open, actions);
  }
  SetDue(open, now + open->interval);
  ++stats_.probes_sent;
  NoteAsked(now, &peer);
  Send(open->request, Frame{*probe, {}}, /*id=*/0, actions);
}

void RequestTable::Send(const Request& request, Frame frame, uint64_t id, Actions* actions) {
  StampHeader({options_.self, membership_->epoch, request.catalogue_version}, &frame.header);
  actions->sends.push_back({ServerOf(request), std::move(frame), id});
}

bool RequestTable::OnSent(Key key, uint64_t request, absl::Time now) {
  const auto found = open_.find(key);
  if (found == open_.end() || found->second.id != request) return false;
  // A resend is due already, and must not be put off by the probe's interval.
  if (found->second.resend) return true;
  SetDue(&found->second, now + found->second.interval);
  return true;
}

RequestTable::Actions RequestTable::OnTick(absl::Time now) {
  Actions actions;
  if (hellos_due_ <= now) {
    hellos_due_ = absl::InfiniteFuture();
    for (auto& [server, peer] : peers_) {
      if (peer.is_open) continue;
      if (peer.hello_due > now) {
        SetHelloDue(&peer, peer.hello_due);
      } else if (peer.unanswered_hellos >= peer.patience) {
        Reconnect(server, &peer, now, &actions);
      } else {
        SayHello(server, &peer, now, &actions);
      }
    }
  }
  // Each call of OnDue ends the request or moves its entry, so this comes to an end.
  while (!agenda_.empty() && agenda_.begin()->first <= now) {
    OnDue(open_.find(agenda_.begin()->second), now, &actions);
  }
  return actions;
}

// Does the work that is due for a request: ends it, sends it or a probe, or only moves its entry in
// the agenda to the time when work is due.
void RequestTable::OnDue(OpenMap::iterator open, absl::Time now, Actions* actions) {
  if (open->second.NextTime() > now) return Plan(&open->second, open->second.NextTime());
  if (open->second.deadline <= now) {
    // The error must name the server: the ranks that were missing when it last spoke are not to
    // blame, because the answer is the server's to give.
    open->second.missing.clear();
    open->second.request.root = -1;
    return GiveUp(open, DeadlineExceeded("no answer in %s", absl::FormatDuration(options_.timeout)),
                  actions);
  }
  if (!open->second.resend) return SendProbe(&open->second, now, actions);
  ++stats_.resends;
  SendRequest(&open->second, actions);
}

void RequestTable::SetDue(Open* open, absl::Time due) {
  open->due = due;
  // A later time leaves the entry where it is. Most requests end before their entry's time, and
  // OnDue moves the entries of the others.
  if (open->NextTime() < open->planned) Plan(open, open->NextTime());
}

void RequestTable::Plan(Open* open, absl::Time at) {
  const Key key = open->request.frame.header.key;
  agenda_.erase({open->planned, key});
  open->planned = at;
  agenda_.insert({at, key});
}

RequestTable::Actions RequestTable::OnFrame(NodeId server, const Frame& frame, absl::Time now) {
  Actions actions;
  const FrameHeader& header = frame.header;
  if (header.sender != server) {
    ++stats_.frames_dropped;
    return actions;
  }
  if (const auto peer = peers_.find(server); peer != peers_.end()) {
    ++peer->second.frames_heard;
    const bool is_result = header.type == FrameType::kReply || header.type == FrameType::kValue;
    if (is_result) ++peer->second.results_heard;
    peer->second.unanswered_hellos = 0;
    peer->second.patience = kPatience;
  }
  if (header.type == FrameType::kHello) {
    OnHello(server, &actions);
  } else if (header.type == FrameType::kError) {
    OnError(server, frame, now, &actions);
  } else if (const auto open = FindOpen(server, header); open == open_.end()) {
    ++stats_.frames_dropped;
  } else if (header.type == FrameType::kWaiting) {
    OnWaiting(frame, open, now, &actions);
  } else {
    OnResult(frame, open, now, &actions);
  }
  return actions;
}

void RequestTable::OnResult(const Frame& frame, OpenMap::iterator open, absl::Time now,
                            Actions* actions) {
  const FrameHeader& asked = open->second.request.frame.header;
  if (!IsAnswer(asked.type, frame.header.type) || frame.header.num_elements != asked.num_elements) {
    ++stats_.frames_dropped;
    return;
  }
  // A reply's checksum is verified by the stage that decodes it, on the pool; a value has no such
  // stage.
  const bool is_checked_here =
      frame.header.type == FrameType::kValue || frame.header.type == FrameType::kRebuild;
  if (is_checked_here && !CheckPayload(frame).ok()) {
    return ResendAt(&open->second, now);
  }
  // Tells the server that the value of a broadcast has arrived, so that it need not keep it. The
  // message is not answered; if it is lost, the next broadcast's fetch says the same.
  if (frame.header.type == FrameType::kValue && asked.part == StatePart::kNone) {
    const FrameHeader has =
        BroadcastHeader(FrameType::kProbe, asked.key, asked.step, asked.num_elements);
    Send(open->second.request, Frame{has, {}}, /*id=*/0, actions);
  }
  End(open, {frame}, actions);
}

void RequestTable::OnHello(NodeId server, Actions* actions) {
  const auto found = peers_.find(server);
  if (found == peers_.end() || found->second.is_open) return;
  found->second.is_open = found->second.was_open = true;
  found->second.hello_interval = kFirstHelloInterval;
  for (auto& [key, open] : open_) {
    if (ServerOf(open.request) == server) SendRequest(&open, actions);
  }
}

void RequestTable::OnWaiting(const Frame& frame, OpenMap::iterator found, absl::Time now,
                             Actions* actions) {
  Open* const open = &found->second;
  absl::StatusOr<std::vector<Rank>> missing = DecodeRanks(frame.payload.span());
  if (!CheckPayload(frame).ok() || !missing.ok()) return;  // the next probe asks again
  // The server names nobody where it waits for the value's root. In an epoch without that rank the
  // root can send nothing more.
  const Rank root = open->request.root;
  if (root >= 0 && missing->empty() && frame.header.epoch == membership_->epoch &&
      membership_->IsVacant(root)) {
    const absl::Status status = FailedPrecondition(
        "the job goes on without %s, which was to give the value: let another one give it",
        NameOfWorker(root, options_.processes));
    return End(found, {Describe(*open, status)}, actions);
  }
  // The server counts this worker among the missing, so our request never arrived or was lost with
  // an old epoch.
  const bool lost_ours =
      std::find(missing->begin(), missing->end(), options_.rank) != missing->end();
  open->missing = *std::move(missing);
  open->accepted = !lost_ours && frame.header.epoch == membership_->epoch;
  if (!lost_ours) {
    open->retries = open->payload_losses = 0;
    // The other workers are alive, or we would have been told. The server owes us nothing before
    // they come, so its time begins anew.
    open->deadline = now + options_.timeout;
  }
  // A fetch that gets this answer has arrived.
  if (lost_ours && !open->resend && open->request.frame.header.type != FrameType::kFetch) {
    ++stats_.resends;
    SendRequest(open, actions);
  } else if (open->due == absl::InfiniteFuture()) {
    // The answer has overtaken the transport's notice that the frame is out, which would have
    // planned the next probe.
    SetDue(open, now + open->interval);
  }
}

bool RequestTable::IsAccepted(Key key) const {
  const auto found = open_.find(key);
  return found != open_.end() && found->second.accepted;
}

void RequestTable::ResendAt(Open* open, absl::Time due) {
  open->resend = true;
  SetDue(open, due);
}

// Sends the same bytes again, later each time, as often as the budget for the error allows. A
// damaged frame is sent again at once: the server could take it, so there is nothing to wait for.
void RequestTable::Retry(OpenMap::iterator found, const absl::Status& why, absl::Time now,
                         Actions* actions) {
  Open& open = found->second;
  const bool damaged = absl::IsDataLoss(why);
  const int retries = damaged ? ++open.payload_losses : ++open.retries;
  const int budget = damaged ? kMaxPayloadLosses : kMaxRetries;
  if (retries >= budget && !open.request.is_patient) {
    const std::string tries = absl::StrFormat("sent %d times in vain", retries);
    return GiveUp(found, Annotate(why, tries), actions);
  }
  if (damaged && retries < budget) return ResendAt(&open, now);
  absl::Duration delay = kRetryDelay;
  const absl::Duration most = options_.probe_interval * kMaxProbeBackoff;
  for (int i = 1; i < retries && delay < most; ++i) delay *= 2;
  ResendAt(&open, now + std::min(delay, most));
}

void RequestTable::GiveUp(OpenMap::iterator open, const absl::Status& why, Actions* actions) {
  // The server may have counted a push although its answer did not come; only the code Unknown says
  // so. A request about state or a broadcast may simply be made again.
  const bool is_unknown = open->second.request.of_exchange;
  const absl::Status status =
      is_unknown ? absl::UnknownError(absl::StrCat(
                       why.message(), "; whether the server has counted it is not known here"))
                 : why;
  End(open, {Describe(open->second, status), is_unknown}, actions);
}

void RequestTable::OnError(NodeId server, const Frame& frame, absl::Time now, Actions* actions) {
  const absl::Status status = CheckPayload(frame).ok() ? DecodeError(frame.payload.span())
                                                       : Unavailable("a damaged error frame");
  const auto peer = peers_.find(server);
  if (status.code() == absl::StatusCode::kUnauthenticated && peer != peers_.end()) {
    // The server has lost our connection, or its memory of it. It is greeted; OnHello then sends
    // the open requests again.
    if (peer->second.is_open) SayHello(server, &peer->second, now, actions);
    return;
  }
  // Steps of rounds and broadcasts count from 1, and so do the numbers of requests about state. An
  // error with neither is about the hello.
  const bool about_hello = peer != peers_.end() && !peer->second.is_open &&
                           frame.header.step == 0 && frame.header.request == 0;
  if (about_hello) {
    // A server that knew this worker, and knows it no more, has a roster without it: the scheduler
    // says why, to all requests at once.
    const bool is_out = absl::IsPermissionDenied(status) && peer->second.was_open;
    if (is_out) return SetHelloDue(&peer->second, now + options_.probe_interval);
    if (status.code() == absl::StatusCode::kUnavailable ||
        status.code() == absl::StatusCode::kDataLoss) {
      // The server has no membership yet, or the hello was damaged.
      return SetHelloDue(&peer->second, now + kRetryDelay);
    }
    // A server that refuses this worker for good, as with a wrong secret, will never answer any
    // request.
    return EndAll(Annotate(status, ServerName(server)), actions);
  }
  const auto found = FindOpen(server, frame.header);
  if (found == open_.end()) {
    ++stats_.frames_dropped;
    return;
  }
  // Unavailable: the server cannot take it yet. FailedPrecondition: our epoch is over; the next one
  // stamps the same bytes anew. DataLoss: the frame was damaged on the way.
  if (absl::IsUnavailable(status) || absl::IsFailedPrecondition(status) ||
      absl::IsDataLoss(status)) {
    return Retry(found, Annotate(status, ServerName(server)), now, actions);
  }
  End(found, {Describe(found->second, Annotate(NotUnknown(status), ServerName(server)))}, actions);
}

void RequestTable::End(OpenMap::iterator open, Outcome outcome, Actions* actions) {
  const Key key = open->first;
  const Step step = open->second.request.frame.header.step;
  agenda_.erase({open->second.planned, key});
  open_.erase(open);
  actions->answers.push_back({key, step, std::move(outcome)});
}

RequestTable::Actions RequestTable::Fail(const absl::Status& status) {
  Actions actions;
  EndAll(status, &actions);
  return actions;
}

void RequestTable::EndAll(const absl::Status& status, Actions* actions) {
  if (!failed_.ok()) return;
  failed_ = NotUnknown(status);
  while (!open_.empty()) {
    End(open_.begin(), {Describe(open_.begin()->second, failed_)}, actions);
  }
}

std::vector<NodeId> RequestTable::Silent() const {
  std::vector<NodeId> silent;
  for (const auto& [node, peer] : peers_) {
    if (peer.frames_heard == 0) silent.push_back(node);
  }
  return silent;
}

std::string RequestTable::Fingerprint() const {
  std::string text = absl::StrFormat("epoch %d;", membership_->epoch);
  for (const auto& [node, peer] : peers_) {
    absl::StrAppendFormat(&text, "%d%d patience%d;", node, peer.is_open, peer.patience);
  }
  for (const auto& [key, open] : open_) {
    absl::StrAppendFormat(
        &text, "%s@%d due%d resend%d accepted%d losses%d retries%d probes%d off%d;", key.ToString(),
        open.request.frame.header.step, open.due < absl::InfiniteFuture(), open.resend,
        open.accepted, open.payload_losses, open.retries, open.unanswered_probes,
        open.probes_put_off);
  }
  return text;
}

std::string RequestTable::WaitingFor(Key key) const {
  const auto found = open_.find(key);
  return found == open_.end() ? std::string() : WaitingFor(found->second);
}

std::string RequestTable::WaitingFor(const Open& open) const {
  const auto peer = peers_.find(ServerOf(open.request));
  const bool server_answers = peer != peers_.end() && peer->second.is_open;
  std::vector<Rank> ranks = open.missing;
  // A server that waits for the root of a broadcast names no rank; the root is known here.
  const bool waits_for_root = open.request.frame.header.type == FrameType::kFetch;
  if (waits_for_root && ranks.empty() && open.request.root >= 0) {
    ranks.push_back(open.request.root);
  }
  if (!server_answers || ranks.empty()) return ServerName(ServerOf(open.request));
  std::string names;
  for (const Rank rank : ranks) {
    names += (names.empty() ? "" : ", ") + NameOfWorker(rank, options_.processes);
  }
  return names;
}

std::string RequestTable::ServerName(NodeId server) const {
  if (server == 0) return "a server in the place of one that was lost";
  const auto peer = peers_.find(server);
  if (peer == peers_.end()) return "server node " + std::to_string(server);
  return "server " + std::to_string(peer->second.rank);
}

absl::Status RequestTable::Describe(const Open& open, const absl::Status& status) const {
  return WithFields(status, {.tensor = open.request.tensor,
                             .step = std::to_string(open.request.frame.header.step),
                             .stage = "exchange",
                             .waiting_for = WaitingFor(open)});
}

}  // namespace bdn
