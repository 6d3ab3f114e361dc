#include "common/transport/fabric/fabric_transport.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/thread.h"
#include "common/transport/fabric/fabric_poller.h"

namespace bdn {
namespace {

// For providers without a file descriptor to wait for: the time for which the poller looks without
// a pause after it was busy, and the longest pause between two looks.
constexpr absl::Duration kLooks = absl::Microseconds(50);
constexpr absl::Duration kLongestNap = absl::Milliseconds(1);
// The longest wait while the provider takes no more: nothing tells when it will.
constexpr absl::Duration kStuckNap = absl::Milliseconds(1);
constexpr absl::Duration kLongestSleep = absl::Minutes(1);

class FabricTransportImpl;
thread_local const FabricTransportImpl* polled_here = nullptr;  // whose poller this thread is

class FabricTransportImpl final : public FabricTransport {
 public:
  FabricTransportImpl(std::unique_ptr<Transport> network, const FabricOptions& options,
                      FileDescriptor wake)
      : FabricTransport(std::move(network)),
        options_(options),
        clock_(options.clock == nullptr ? &own_clock_ : options.clock),
        mailbox_(std::make_shared<FabricMailbox>(std::move(wake))) {}
  ~FabricTransportImpl() override {
    Close();
    Join();
  }
  // Opens the provider. Called once, before anything else.
  absl::Status Open();
  // Starts the poller. Called once, after Open.
  void Begin();
  // Gives the network back, where Open has failed.
  std::unique_ptr<Transport> ReleaseNetwork() { return ReleaseInner(); }

  void Start(FrameHandler handler, GoneHandler gone) override;
  absl::StatusOr<std::vector<Endpoint>> Listen(const std::string& address) override;
  absl::StatusOr<ConnectionId> Connect(const Peer& peer) override;
  void Disconnect(ConnectionId connection) override;
  void Admit(Admission admission) override {
    // Asked before the network is told. The network then ends connections of peers that have left
    // the job and lets in new peers, whose hellos must find the admission here.
    mailbox_->Ask([&](auto* requests) { requests->admission = admission; });
    network()->Admit(std::move(admission));
  }
  PublicKey KeyOf(ConnectionId connection) const override;
  ConnectionFacts FactsOf(ConnectionId connection) const override;
  void Send(ConnectionId to, Frame frame, SendDone done) override;
  std::shared_ptr<MemoryDomain> memory() override { return memory_; }
  TransportStats stats() const override;
  void Close() override;
  void Join() override;
  const std::string& domain() const override { return domain_; }
  uint64_t bytes_copied() const override { return counters_.bytes_copied.Read(); }
  size_t num_sessions() const override { return counters_.sessions.Read(); }
  uint64_t num_meetings() const override { return counters_.meetings.Read(); }

 private:
  Transport* network() const { return inner(); }
  void OnNetworkFrame(ConnectionId from, Frame frame);
  void SendByNetwork(ConnectionId to, Frame frame, SendDone done);
  bool SendNow(FabricMailbox::Outgoing* outgoing);
  void Say(ConnectionId to, const FabricHandshake& handshake);
  FabricPoller::Owner OwnerOfPoller();

  // These run on the poller's thread.
  void RunPoller();
  void Refuse(FabricMailbox::Requests* requests);
  void Sleep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(working_);
  // Returns how long the poller may sleep; zero: it should look again at once.
  absl::Duration LongestWait() ABSL_EXCLUSIVE_LOCKS_REQUIRED(working_);

  const FabricOptions options_;
  const SteadyClock own_clock_;
  const Clock* const clock_;
  const std::shared_ptr<FabricMailbox> mailbox_;
  std::shared_ptr<MemoryDomain> memory_;  // const after Open
  std::string domain_;                    // as well
  FrameHandler handler_;                  // const after Start
  GoneHandler gone_;                      // as well
  FabricCounters counters_;
  // Handshakes over the network, which are no frames of the transport's users.
  TransportCounters said_;

  mutable Mutex mu_;
  absl::flat_hash_set<ConnectionId> by_fabric_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_set<ConnectionId> connectors_
      ABSL_GUARDED_BY(mu_);  // those of by_fabric_ that Connect made
  absl::flat_hash_set<ConnectionId> cut_
      ABSL_GUARDED_BY(mu_);  // cut here; the network still has them

  Mutex working_;                         // held by the poller while it is awake
  std::unique_ptr<FabricPoller> fabric_;  // the pointer is const after Open
  absl::Time busy_at_ ABSL_GUARDED_BY(working_) = absl::InfinitePast();
  bool is_closed_ ABSL_GUARDED_BY(working_) = false;

  Mutex join_mu_;
  std::thread poller_ ABSL_GUARDED_BY(join_mu_);  // last: it uses everything above
};

absl::Status FabricTransportImpl::Open() {
  BDN_ASSIGN_OR_RETURN(fabric_, FabricPoller::Make(OwnerOfPoller()));
  memory_ = fabric_->memory();
  domain_ = fabric_->endpoint().domain();
  return absl::OkStatus();
}

void FabricTransportImpl::Begin() {
  MutexLock lock(&join_mu_);
  poller_ = StartThread("bdn-fabric", [this] { RunPoller(); });
}

FabricPoller::Owner FabricTransportImpl::OwnerOfPoller() {
  return {.options = &options_,
          .clock = clock_,
          .mailbox = mailbox_,
          .counters = &counters_,
          .deliver = [this](ConnectionId from, Frame frame) { handler_(from, std::move(frame)); },
          .say = [this](ConnectionId to, const FabricHandshake& handshake) { Say(to, handshake); },
          .send_by_network =
              [this](FabricMailbox::Outgoing outgoing) {
                SendByNetwork(outgoing.to, std::move(outgoing.frame), std::move(outgoing.done));
              },
          .set_way =
              [this](ConnectionId connection, bool by_fabric) {
                MutexLock lock(&mu_);
                if (by_fabric) {
                  by_fabric_.insert(connection);
                } else {
                  by_fabric_.erase(connection);
                }
              },
          .cut =
              [this](ConnectionId connection) {
                MutexLock lock(&mu_);
                cut_.insert(connection);
              },
          .key_of = [this](ConnectionId connection) -> std::optional<PublicKey> {
            if (network()->security() == LinkSecurity::kOpen) return PublicKey();
            const PublicKey key = network()->KeyOf(connection);
            return key.empty() ? std::nullopt : std::optional(key);
          },
          .gone =
              [this](ConnectionId connection) {
                if (gone_) gone_(connection);
              }};
}

// ---- Calls of other threads

void FabricTransportImpl::Start(FrameHandler handler, GoneHandler gone) {
  handler_ = std::move(handler);
  gone_ = std::move(gone);
  network()->Start(
      [this](ConnectionId from, Frame frame) { OnNetworkFrame(from, std::move(frame)); },
      [this](ConnectionId connection) {
        {
          MutexLock lock(&mu_);
          cut_.erase(connection);
        }
        mailbox_->Ask([&](auto* requests) { requests->gone.push_back(connection); });
      });
}

void FabricTransportImpl::OnNetworkFrame(ConnectionId from, Frame frame) {
  if (frame.header.type != FrameType::kTransport) {
    {
      MutexLock lock(&mu_);
      if (cut_.contains(from)) return;
    }
    return handler_(from, std::move(frame));
  }
  said_.frames_received.Add();
  said_.bytes_received.Add(kHeaderBytes + frame.payload.size());
  const absl::Status arrived = CheckPayload(frame);
  absl::StatusOr<FabricHandshake> handshake =
      arrived.ok() ? DecodeFabricHandshake(frame.payload.span()) : arrived;
  mailbox_->Ask(
      [&](auto* requests) { requests->handshakes.emplace_back(from, std::move(handshake)); });
}

void FabricTransportImpl::Say(ConnectionId to, const FabricHandshake& handshake) {
  Frame frame = MakeFrame({.type = FrameType::kTransport}, EncodeFabricHandshake(handshake));
  said_.frames_sent.Add();
  said_.bytes_sent.Add(kHeaderBytes + frame.payload.size());
  network()->Send(to, std::move(frame), [](const absl::Status&) {});
}

absl::StatusOr<std::vector<Endpoint>> FabricTransportImpl::Listen(const std::string& address) {
  BDN_ASSIGN_OR_RETURN(std::vector<Endpoint> endpoints, network()->Listen(address));
  endpoints.insert(endpoints.begin(),
                   {std::string(kFabricScheme), options_.endpoint.provider, LinkSecurity::kOpen});
  return endpoints;
}

absl::StatusOr<ConnectionId> FabricTransportImpl::Connect(const Peer& peer) {
  const absl::StatusOr<ConnectionId> connection = network()->Connect(peer);
  if (!connection.ok()) return connection;
  const Endpoint* const fabric = FindEndpoint(peer.endpoints, kFabricScheme);
  const std::string& ours = options_.endpoint.provider;
  if (fabric == nullptr || fabric->address != ours) {
    if (!options_.always) return connection;
    network()->Disconnect(*connection);
    const std::string address = NetworkUrl(peer.endpoints);
    if (fabric == nullptr) {
      return Unavailable(
          "%s offers no fabric, and transport is rdma here: is its transport rdma, too?", address);
    }
    return Unavailable("%s has fabric-provider %s, and this process %s: they must be the same",
                       address, Printable(fabric->address), ours);
  }
  {
    MutexLock lock(&mu_);
    by_fabric_.insert(*connection);
    connectors_.insert(*connection);
  }
  mailbox_->Ask([&](auto* requests) { requests->connectors.push_back(*connection); });
  return connection;
}

void FabricTransportImpl::Disconnect(ConnectionId connection) {
  {
    MutexLock lock(&mu_);
    if (connectors_.erase(connection) > 0) by_fabric_.erase(connection);
  }
  mailbox_->Ask([&](auto* requests) { requests->ended.push_back(connection); });
  network()->Disconnect(connection);
}

PublicKey FabricTransportImpl::KeyOf(ConnectionId connection) const {
  {
    MutexLock lock(&mu_);
    if (cut_.contains(connection)) return {};
  }
  return network()->KeyOf(connection);
}

ConnectionFacts FabricTransportImpl::FactsOf(ConnectionId connection) const {
  {
    MutexLock lock(&mu_);
    // A fabric has no windows of TCP, and a second session would take a second window of memory.
    if (by_fabric_.contains(connection)) return {};
  }
  return network()->FactsOf(connection);
}

void FabricTransportImpl::SendByNetwork(ConnectionId to, Frame frame, SendDone done) {
  AddChecksum(&frame);
  network()->Send(to, std::move(frame), std::move(done));
}

void FabricTransportImpl::Send(ConnectionId to, Frame frame, SendDone done) {
  bool by_fabric;
  bool is_cut;
  {
    MutexLock lock(&mu_);
    by_fabric = by_fabric_.contains(to);
    is_cut = cut_.contains(to);
  }
  if (is_cut) {
    counters_.transport.sends_failed.Add();
    return mailbox_->Ask([&](auto* requests) {
      requests->done.push_back({std::move(done), Unavailable("send: connection %d is gone", to)});
    });
  }
  if (!by_fabric) return SendByNetwork(to, std::move(frame), std::move(done));
  FabricMailbox::Outgoing outgoing = {to, std::move(frame), std::move(done)};
  const bool is_sent = SendNow(&outgoing);
  if (is_sent && polled_here == this) return;
  // Asked also if the message is sent: the poller must wake for the event that tells of its end.
  mailbox_->Ask([&](auto* requests) {
    if (!is_sent) requests->frames.push_back(std::move(outgoing));
  });
}

// Sends a message without the poller's next round, while the poller sleeps or on the poller's own
// thread.
bool FabricTransportImpl::SendNow(FabricMailbox::Outgoing* outgoing) {
  if (polled_here == this) return fabric_->SendNow(outgoing);  // the poller holds the lock
  if (!working_.TryLock()) return false;
  const bool is_sent = fabric_->SendNow(outgoing);
  working_.Unlock();
  return is_sent;
}

TransportStats FabricTransportImpl::stats() const {
  const auto without = [](uint64_t all, const TransportCounter& some) {
    return all - std::min(all, some.Read());
  };
  TransportStats all = network()->stats();
  const TransportStats fabric = counters_.transport.Read();
  all.frames_sent = without(all.frames_sent, said_.frames_sent) + fabric.frames_sent;
  all.frames_received =
      without(all.frames_received, said_.frames_received) + fabric.frames_received;
  all.bytes_sent = without(all.bytes_sent, said_.bytes_sent) + fabric.bytes_sent;
  all.bytes_received = without(all.bytes_received, said_.bytes_received) + fabric.bytes_received;
  all.frames_malformed += fabric.frames_malformed;
  all.sends_failed += fabric.sends_failed;
  all.connections_cut += fabric.connections_cut;
  all.bytes_queued += fabric.bytes_queued;
  MutexLock lock(&mu_);
  all.connections_open -= std::min<uint64_t>(all.connections_open, cut_.size());
  return all;
}

void FabricTransportImpl::Close() {
  if (network() == nullptr) return;  // Open failed, and the network was given back
  network()->Close();
  mailbox_->Ask([](auto* requests) { requests->is_closed = true; });
}

void FabricTransportImpl::Join() {
  MutexLock join_lock(&join_mu_);
  if (network() == nullptr) return;
  // The poller goes first: frames that it hands to the network need the network's thread for their
  // callbacks.
  if (poller_.joinable()) {
    mailbox_->Ask([](auto* requests) { requests->is_joining = true; });
    poller_.join();
  }
  network()->Join();
}

// ---- The poller

void FabricTransportImpl::RunPoller() {
  polled_here = this;
  MutexLock working(&working_);
  while (true) {
    FabricMailbox::Requests requests = mailbox_->Take();
    if (!is_closed_) fabric_->Apply(&requests);
    if (requests.is_closed && !is_closed_) {
      fabric_->Close();
      is_closed_ = true;
    } else if (is_closed_) {
      Refuse(&requests);
    }
    for (FabricMailbox::Done& done : requests.done) done.done(std::move(done.status));
    if (is_closed_) {
      if (requests.is_joining) {
        if (!mailbox_->BeginSleep()) continue;  // there is another request
        mailbox_->EndSleep(false);
        return;
      }
      Sleep();
      continue;
    }
    fabric_->OnTime(clock_->Now());
    if (fabric_->Progress()) {
      busy_at_ = clock_->Now();  // after the work: providers copy within it
    } else {
      Sleep();
    }
  }
}

void FabricTransportImpl::Refuse(FabricMailbox::Requests* requests) {
  for (FabricMailbox::Outgoing& outgoing : requests->frames) {
    counters_.transport.sends_failed.Add();
    outgoing.done(Unavailable("send: the transport was closed"));
  }
}

absl::Duration FabricTransportImpl::LongestWait() {
  if (is_closed_) return kLongestSleep;
  const absl::Time now = clock_->Now();
  absl::Duration wait = std::min(fabric_->NextTime() - now, kLongestSleep);
  if (fabric_->is_stuck()) wait = std::min(wait, kStuckNap);
  if (fabric_->endpoint().wait_fd() >= 0) {
    return fabric_->MayWait() ? wait : absl::ZeroDuration();
  }
  // A pause of a quarter of the idle time delays a frame by a quarter of the time since the last
  // one at most, and costs ever less of a core.
  const absl::Duration idle = now - busy_at_;
  return idle < kLooks ? absl::ZeroDuration() : std::min({wait, idle / 4, kLongestNap});
}

void FabricTransportImpl::Sleep() {
  const absl::Duration wait = LongestWait();
  if (wait <= absl::ZeroDuration()) {
    if (!is_closed_ && fabric_->endpoint().wait_fd() < 0) std::this_thread::yield();
    return;
  }
  if (!mailbox_->BeginSleep()) return;
  std::array<pollfd, 2> fds = {pollfd{mailbox_->wake_fd(), POLLIN, 0},
                               pollfd{is_closed_ ? -1 : fabric_->endpoint().wait_fd(), POLLIN, 0}};
  const timespec timeout = absl::ToTimespec(wait);
  // Unlocked while it sleeps, so that other threads can send messages at once (SendNow).
  working_.Unlock();
  ppoll(fds.data(), fds.size(), &timeout, nullptr);
  working_.Lock();
  mailbox_->EndSleep(fds[0].revents != 0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<FabricTransport>> FabricTransport::Make(
    std::unique_ptr<Transport>&& network, const FabricOptions& options) {
  constexpr uint64_t kLeastWindow = uint64_t{1} << 20;
  constexpr uint64_t kMostWindow = uint64_t{512} << 20;
  if (options.window_bytes < kLeastWindow || options.window_bytes > kMostWindow ||
      options.max_payload_bytes > kMaxPayloadBytes || options.max_frames_queued < 1) {
    return InvalidArgument(
        "fabric options: window_bytes %d (1 MiB to 512 MiB), max_payload_bytes %d, "
        "max_frames_queued %d (at least 1)",
        options.window_bytes, options.max_payload_bytes, options.max_frames_queued);
  }
  FileDescriptor wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.is_open()) return ResourceExhausted("fabric: %s", std::strerror(errno));
  auto transport =
      std::make_unique<FabricTransportImpl>(std::move(network), options, std::move(wake));
  if (const absl::Status opened = transport->Open(); !opened.ok()) {
    network = transport->ReleaseNetwork();
    return opened;
  }
  transport->Begin();
  return transport;
}

}  // namespace bdn
