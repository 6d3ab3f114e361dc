#ifndef BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_PORT_H_
#define BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_PORT_H_

#include <deque>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/transport/fabric/fabric_arena.h"
#include "common/transport/fabric/fabric_endpoint.h"
#include "common/transport/fabric/fabric_memory.h"
#include "common/transport/fabric/fabric_receiver.h"
#include "common/transport/fabric/fabric_sender.h"
#include "common/transport/fabric/fabric_transport.h"
#include "common/transport/fabric/fabric_window.h"
#include "common/transport/transport_counters.h"

namespace bdn {

// An endpoint and all that is of use with it alone: what goes out, what comes in, and what peers that were
// left may still touch. Not thread-safe: the poller's.
class FabricPort {
 public:
  // As FabricEndpoint::Open; FailedPrecondition: its messages are too short. `copied` is borrowed.
  static absl::StatusOr<std::unique_ptr<FabricPort>> Open(const FabricEndpoint::Options& options,
                                                          TransportCounter* copied);
  ~FabricPort() { Close(); }
  FabricPort(const FabricPort&) = delete;
  FabricPort& operator=(const FabricPort&) = delete;

  // Whether a peer's end may keep it from ever completing anything again: providers of the host take answers
  // in order, and those who were killed give none. Such a port can be replaced by another.
  bool can_be_stuck() const { return endpoint->is_of_host() && arena == nullptr; }

  // What was granted to a peer is not read any more, and nothing new goes to it. A provider of the host does
  // not answer a write to memory that has gone: there that goes with Forget. And it would take who comes next
  // for a peer that it was told to remove: there all stay until Close.
  void Leave(const std::string& address, std::shared_ptr<FabricWindow> window, absl::Time now);
  // Drops who was left long ago. When it has more to do: never, if there is nobody.
  absl::Time Forget(absl::Time now);

  // Of a port that was replaced: answers what still comes, and hands over nothing. False: there was nothing.
  bool Drain();
  // No memory of ours is reached by anybody afterwards.
  void Close();

  std::shared_ptr<RetiredAddresses> retired = std::make_shared<RetiredAddresses>();
  std::unique_ptr<FabricEndpoint> endpoint;
  std::shared_ptr<FabricArena> arena;  // null where nothing need be registered
  std::unique_ptr<FabricSender> sender;
  std::unique_ptr<FabricReceiver> receiver;

 private:
  struct Left {
    absl::Time at;
    std::string address;  // empty: it was none's yet
    std::shared_ptr<FabricWindow> window;
  };
  FabricPort() = default;
  void Drop(const Left& left);

  std::deque<Left> left_;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_PORT_H_
