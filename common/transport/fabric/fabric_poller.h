#ifndef BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_POLLER_H_
#define BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_POLLER_H_

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "common/base/log_limit.h"
#include "common/transport/fabric/fabric_mailbox.h"
#include "common/transport/fabric/fabric_port.h"
#include "common/transport/fabric/fabric_session.h"
#include "common/transport/fabric/fabric_transport.h"
#include "common/transport/transport_counters.h"

namespace bdn {

struct FabricCounters {
  TransportCounters transport;
  TransportCounter bytes_copied;
  TransportCounter sessions;
  TransportCounter meetings;
};

// What a fabric's transport does on its one thread: meets peers, sends what waits, hands over what has
// come, and ends what has failed. Not thread-safe, but for what it lends. Only SendNow is called on others.
class FabricPoller {
 public:
  // What the transport lends to it, and is told by it.
  struct Owner {
    const FabricOptions* options;
    const Clock* clock;
    std::shared_ptr<FabricMailbox> mailbox;  // frames that are lent may outlive the transport
    FabricCounters* counters;
    std::function<void(ConnectionId from, Frame frame)> deliver;
    // Over the network: what the ends say of themselves, and frames that go there.
    std::function<void(ConnectionId to, const FabricHandshake& handshake)> say;
    std::function<void(FabricMailbox::Outgoing outgoing)> send_by_network;
    // Frames to it go over the fabric from now on, or over the network again.
    std::function<void(ConnectionId connection, bool by_fabric)> set_way;
    std::function<void(ConnectionId connection)> cut;
    // Whose a listener's connection is; none where nobody is asked. Nothing: it is gone.
    std::function<std::optional<PublicKey>(ConnectionId connection)> key_of;
    std::function<void(ConnectionId connection)> gone;  // all it sent was handed over
  };
  static absl::StatusOr<std::unique_ptr<FabricPoller>> Make(Owner owner);
  ~FabricPoller();
  FabricPoller(const FabricPoller&) = delete;
  FabricPoller& operator=(const FabricPoller&) = delete;

  const FabricEndpoint& endpoint() const { return *port_->endpoint; }
  // For payloads; may be asked on any thread.
  std::shared_ptr<MemoryDomain> memory() const;

  // Does what was asked.
  void Apply(FabricMailbox::Requests* requests);
  // For a message that can leave at once. False: it waits for the poller, and nothing was done or told.
  bool SendNow(FabricMailbox::Outgoing* outgoing);
  // Looks at what has come, and sends what can be sent. False: there was nothing.
  bool Progress();
  // Whether the provider has something to wait for, and agrees.
  bool MayWait() { return port_->endpoint->MayWait(); }
  // Something waits for the provider alone.
  bool is_stuck() const { return is_stuck_; }
  // When OnTime has something to do; it may be called at any time.
  absl::Time NextTime() const { return due_; }
  void OnTime(absl::Time now);
  // Ends everything: no memory of ours is reached by anybody afterwards.
  void Close();

 private:
  using Outgoing = FabricMailbox::Outgoing;
  using SessionPtr = std::unique_ptr<FabricSession>;
  enum class Sent { kSent, kWaits, kEnded };

  static constexpr absl::Duration kRetryDelay = absl::Milliseconds(50);
  // So long what is to be written waits for room, before it goes over the network.
  static constexpr absl::Duration kMostNoRoom = absl::Milliseconds(200);
  // So that others do not keep the end of one from being told.
  static constexpr int kMostDrains = 256;
  static uint64_t BytesOf(const Frame& frame) { return kHeaderBytes + frame.payload.size(); }

  explicit FabricPoller(Owner owner)
      : owner_(std::move(owner)), options_(*owner_.options), log_(owner_.clock) {}

  FabricSession* Find(ConnectionId connection) const;

  void DueAt(absl::Time time) { due_ = std::min(due_, time); }

  // Meeting.
  void AddConnector(ConnectionId connection);
  absl::Status Grant(FabricSession* session);
  void Greet(FabricSession* session);
  absl::Status Accept(FabricSession* session, const FabricHandshake& peer);
  void OnHandshake(ConnectionId from, const absl::StatusOr<FabricHandshake>& handshake);
  void OnHello(ConnectionId from, const FabricHandshake& hello);
  void OnWelcome(FabricSession* session, const FabricHandshake& welcome);
  void OnRefusal(FabricSession* session, const std::string& why);

  // Sending.
  void Enqueue(Outgoing outgoing);
  absl::Status CheckMayWait(const FabricSession& session, uint64_t bytes) const;
  Sent TrySend(FabricSession* session, Outgoing* outgoing);
  bool IsMessage(const FabricSession& session, const Frame& frame) const;
  absl::Status SendMessage(FabricSession* session, Outgoing* outgoing);
  Sent TryWrite(FabricSession* session, Outgoing* outgoing);
  Sent OnNoRoom(FabricSession* session, Outgoing* outgoing);
  absl::Status SendPlain(FabricSession* session, const FabricPrefix& prefix, Buffer body);
  void Flush(FabricSession* session);
  // False: the session is not up any more.
  bool SendCredits(FabricSession* session);
  void Fail(Transport::SendDone done, absl::Status status);

  // Ends those who may not be connected any more.
  void Admit(const Admission& admission);
  bool Admits(const PublicKey& key) const { return key.empty() || admitted_.contains(key); }

  // What has come.
  bool HandleEvents();
  void OnEvent(const FabricEvent& event);
  void OnMessage(const FabricEvent& event);
  // False: the peer breaks the rules.
  bool OnCredits(FabricSession* session, ByteSpan blocks);
  void OnWritten(uint32_t immediate);
  void Deliver(FabricSession* session, Frame frame);

  // Ending.
  void Revoke(FabricSession* session, const absl::Status& why);
  void FailWaiting(FabricSession* session, const absl::Status& why);
  void EndMeeting(FabricSession* session, const absl::Status& why);
  void Cut(FabricSession* session, const char* why);
  void Remove(ConnectionId connection, const absl::Status& why);
  void OnGone(ConnectionId connection);
  void ToNetwork(FabricSession* session);

  const Owner owner_;
  const FabricOptions& options_;
  LimitedLog log_;
  std::unique_ptr<FabricPort> port_;
  FabricNumbers numbers_;
  absl::flat_hash_map<ConnectionId, SessionPtr> sessions_;
  absl::flat_hash_map<uint64_t, FabricSession*> by_tag_;
  absl::flat_hash_set<ConnectionId> pending_;  // with something to send
  absl::flat_hash_set<ConnectionId> cut_;
  absl::flat_hash_set<PublicKey> admitted_;
  std::vector<FabricEvent> events_;
  uint64_t last_tag_ = 0;
  absl::Time due_ = absl::InfiniteFuture();  // no session is due before
  bool is_stuck_ = false;
  bool is_closed_ = false;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_POLLER_H_
