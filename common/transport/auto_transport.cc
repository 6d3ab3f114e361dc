#include "common/transport/auto_transport.h"

#include <atomic>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/transport/forwarding.h"
#include "common/transport/shm/shm_socket.h"

namespace bdn {
namespace {

class AutoTransport final : public ForwardingTransport {
 public:
  AutoTransport(std::unique_ptr<Transport> network, std::unique_ptr<ShmTransport> host,
                bool always_host, std::string socket_directory)
      : ForwardingTransport(std::move(network)),
        always_host_(always_host),
        socket_directory_(std::move(socket_directory)),
        host_(std::move(host)) {}
  ~AutoTransport() override {
    Close();
    Join();
  }

  void Start(FrameHandler handler, GoneHandler gone) override {
    StartOne(network(), kNetwork, handler, gone);
    StartOne(host_.get(), kHost, handler, gone);
  }
  absl::StatusOr<std::vector<Endpoint>> Listen(const std::string& address) override;
  absl::StatusOr<ConnectionId> Connect(const Peer& peer) override;
  void Disconnect(ConnectionId connection) override {
    Of(connection)->Disconnect(IdWithin(connection));
  }
  bool needs_checksums() const override { return has_network_.load(std::memory_order_relaxed); }
  void Admit(Admission admission) override {
    host_->Admit(admission);
    network()->Admit(std::move(admission));
  }
  PublicKey KeyOf(ConnectionId connection) const override {
    return Of(connection)->KeyOf(IdWithin(connection));
  }
  ConnectionFacts FactsOf(ConnectionId connection) const override {
    return Of(connection)->FactsOf(IdWithin(connection));
  }
  void Send(ConnectionId to, Frame frame, SendDone done) override {
    // The frame may have been made when all peers were on this machine, and so without a checksum.
    if (KindOf(to) == kNetwork) AddChecksum(&frame);
    Of(to)->Send(IdWithin(to), std::move(frame), std::move(done));
  }
  // The network needs no memory of its own: it sends whatever it can read.
  std::shared_ptr<MemoryDomain> memory() override { return host_->memory(); }
  TransportStats stats() const override;
  void Close() override {
    network()->Close();
    host_->Close();
  }
  void Join() override {
    network()->Join();
    host_->Join();
  }

 private:
  // The lowest bit of a connection's name says which transport it belongs to, so no table is
  // needed.
  enum Kind : ConnectionId { kNetwork = 0, kHost = 1 };
  static Kind KindOf(ConnectionId connection) { return connection % 2 == 0 ? kNetwork : kHost; }
  static ConnectionId IdWithin(ConnectionId connection) { return connection / 2; }
  static ConnectionId Name(ConnectionId within, Kind kind) { return within * 2 + kind; }
  Transport* Of(ConnectionId connection) const {
    return KindOf(connection) == kHost ? host_.get() : network();
  }

  Transport* network() const { return inner(); }
  absl::StatusOr<ConnectionId> ConnectOnHost(const Endpoint& endpoint, const Peer& peer);
  void StartOne(Transport* one, Kind kind, const FrameHandler& handler, const GoneHandler& gone) {
    one->Start(
        [this, kind, handler](ConnectionId from, Frame frame) {
          if (kind == kNetwork) has_network_.store(true, std::memory_order_relaxed);
          handler(Name(from, kind), std::move(frame));
        },
        [kind, gone](ConnectionId connection) {
          if (gone) gone(Name(connection, kind));
        });
  }

  const bool always_host_;
  const std::string socket_directory_;
  const std::unique_ptr<ShmTransport> host_;
  // Whether a frame has come by the network, or a connection was made by it. Publishes nothing
  // else.
  std::atomic<bool> has_network_{false};
  mutable Mutex mu_;
  // The last connection of host_, by the address that it connects to.
  absl::flat_hash_map<std::string, ConnectionId> tried_ ABSL_GUARDED_BY(mu_);
};

absl::StatusOr<std::vector<Endpoint>> AutoTransport::Listen(const std::string& address) {
  absl::StatusOr<std::vector<Endpoint>> endpoints = network()->Listen(address);
  if (!endpoints.ok()) return endpoints;
  const absl::StatusOr<std::vector<Endpoint>> host =
      host_->Listen(NewShmAddress(socket_directory_));
  // First in the list, so that connectors on this machine prefer it.
  if (host.ok()) {
    endpoints->insert(endpoints->begin(), host->begin(), host->end());
  } else if (always_host_) {
    return host.status();
  } else {
    LogWarning("workers of this host come by %s, too: %s", NetworkUrl(*endpoints),
               host.status().message());
  }
  return endpoints;
}

absl::StatusOr<ConnectionId> AutoTransport::ConnectOnHost(const Endpoint& endpoint,
                                                          const Peer& peer) {
  {
    MutexLock lock(&mu_);
    // The last connection to this listener never came up: it may be of another version, or not
    // admit us over shared memory. The network is then the way that works.
    const auto former = tried_.find(endpoint.address);
    if (!always_host_ && former != tried_.end() && !host_->WasUp(former->second)) {
      return Unavailable("it has not taken the connection before");
    }
  }
  BDN_ASSIGN_OR_RETURN(const ConnectionId connection, host_->ConnectNow(peer));
  MutexLock lock(&mu_);
  tried_[endpoint.address] = connection;
  return connection;
}

absl::StatusOr<ConnectionId> AutoTransport::Connect(const Peer& peer) {
  const Endpoint* const host = FindEndpoint(peer.endpoints, kShmScheme);
  const std::string address = NetworkUrl(peer.endpoints);
  if (always_host_ && host == nullptr) {
    return Unavailable(
        "%s shares no memory, and transport is shm: is it of another user, or is its transport "
        "network?",
        address);
  }
  if (host != nullptr) {
    const absl::StatusOr<ConnectionId> connection = ConnectOnHost(*host, peer);
    if (connection.ok()) return Name(*connection, kHost);
    if (always_host_) {
      return Annotate(
          connection.status(),
          absl::StrFormat("%s shares no memory with this process, and transport is shm", address));
    }
    // Nobody listens at that name on this machine, so the peer is on another one. That is the usual
    // case, and no warning.
    if (absl::IsNotFound(connection.status())) {
      LogDebug("to %s over the network: %s", address, connection.status().message());
    } else {
      LogWarning("%s is on this host, but is reached over the network: %s", address,
                 connection.status().message());
    }
  }
  const absl::StatusOr<ConnectionId> connection = network()->Connect(peer);
  if (!connection.ok()) return connection;
  has_network_.store(true, std::memory_order_relaxed);
  return Name(*connection, kNetwork);
}

TransportStats AutoTransport::stats() const {
  TransportStats all = network()->stats();
  const TransportStats host = host_->stats();
  all.frames_sent += host.frames_sent;
  all.frames_received += host.frames_received;
  all.bytes_sent += host.bytes_sent;
  all.bytes_received += host.bytes_received;
  all.frames_malformed += host.frames_malformed;
  all.sends_failed += host.sends_failed;
  all.connections_refused += host.connections_refused;
  all.connections_cut += host.connections_cut;
  all.connections_new += host.connections_new;
  all.connections_open += host.connections_open;
  all.bytes_queued += host.bytes_queued;
  return all;
}

}  // namespace

std::unique_ptr<Transport> MakeAutoTransport(std::unique_ptr<Transport> network,
                                             std::unique_ptr<ShmTransport> host, bool always_host,
                                             std::string socket_directory) {
  return std::make_unique<AutoTransport>(std::move(network), std::move(host), always_host,
                                         std::move(socket_directory));
}

}  // namespace bdn
