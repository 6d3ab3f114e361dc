#ifndef BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_POLLER_H_
#define BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_POLLER_H_

#include <memory>

#include "common/transport/fabric/fabric_events.h"
#include "common/transport/fabric/fabric_meetings.h"
#include "common/transport/fabric/fabric_sends.h"
#include "common/transport/fabric/fabric_sessions.h"

namespace bdn {

// The work of a fabric transport's one thread: it meets peers, sends frames, handles events and
// ends sessions, each by a class of its own. Not thread-safe, but for memory() and the payloads
// that it lends; SendNow may run on another thread while the poller's lock is held there.
class FabricPoller {
 public:
  using Owner = FabricOwner;
  // Returns errors as FabricPort::Open.
  static absl::StatusOr<std::unique_ptr<FabricPoller>> Make(Owner owner);
  ~FabricPoller() { Close(); }
  FabricPoller(const FabricPoller&) = delete;
  FabricPoller& operator=(const FabricPoller&) = delete;

  const FabricEndpoint& endpoint() const { return *sessions_.port()->endpoint; }
  // Memory for payloads. Any thread may ask for it.
  std::shared_ptr<MemoryDomain> memory() const;

  // Does what other threads have asked for.
  void Apply(FabricMailbox::Requests* requests);
  // Sends a message that can leave at once. False: nothing was done, and the frame waits for the
  // poller.
  bool SendNow(FabricMailbox::Outgoing* outgoing);
  // Handles events, and sends what can be sent. False: there were no events.
  bool Progress();
  // Whether the provider has a descriptor to wait for, and agrees to waiting now.
  bool MayWait() { return sessions_.port()->endpoint->MayWait(); }
  // Whether something is unsent that only the provider holds up.
  bool is_stuck() const { return sends_.is_stuck(); }
  // Returns when OnTime has something to do. It may be called at any time.
  absl::Time NextTime() const { return sessions_.due(); }
  void OnTime(absl::Time now) { meetings_.OnTime(now); }
  // Ends everything. Afterwards nobody reaches memory of this process over the fabric.
  void Close();

 private:
  FabricPoller(Owner owner, std::unique_ptr<FabricPort> port)
      : sessions_(std::move(owner), std::move(port)) {}
  void TakeReleased(uint32_t number);
  void EndConnector(ConnectionId connection);

  FabricSessions sessions_;
  FabricMeetings meetings_{&sessions_};
  FabricSends sends_{&sessions_};
  FabricEvents events_{&sessions_};
  bool is_closed_ = false;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_POLLER_H_
