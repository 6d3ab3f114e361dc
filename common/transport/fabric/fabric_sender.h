#ifndef BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_SENDER_H_
#define BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_SENDER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/buffer.h"
#include "common/transport/fabric/fabric_arena.h"
#include "common/transport/fabric/fabric_endpoint.h"
#include "common/transport/fabric/fabric_window.h"
#include "common/transport/transport.h"
#include "common/transport/transport_counters.h"

namespace bdn {

// The sends and writes of an endpoint that have not ended, of which there is a fixed number. The
// head of each is built in registered memory; the payload stays where its encoder put it. Not
// thread-safe: the poller's.
class FabricSender {
 public:
  // `arena` is null where memory need not be registered. `endpoint` is borrowed.
  static absl::StatusOr<std::unique_ptr<FabricSender>> Make(
      FabricEndpoint* endpoint, std::shared_ptr<FabricArena> arena,
      std::shared_ptr<RetiredAddresses> retired, TransportCounter* copied);
  ~FabricSender();

  // The peer to which something goes.
  struct Target {
    FabricEndpoint::Peer peer;
    const std::string& address;  // as it was given to AddPeer
    uint64_t session;            // the session's tag, for Abandon
  };
  // One message or write.
  struct Item {
    FabricPrefix prefix;
    const FrameHeader* header = nullptr;  // null: the body follows the prefix directly
    Buffer* body;                         // taken if the call succeeds
    Transport::SendDone* done = nullptr;  // taken if the call succeeds; null for none
  };
  // Begin to send or write an item. Unavailable: not now; try again later. Any other error is
  // final. After an error nothing was taken.
  absl::Status Send(const Target& to, const Item& item);
  absl::Status Write(const Target& to, const Item& item, const FabricPeerWindow::Place& place);

  // The session and the callback of an operation that has ended.
  struct Ended {
    uint64_t session = 0;  // 0: the session was abandoned
    Transport::SendDone done;
  };
  // Takes an event of one of its operations.
  Ended OnEvent(const FabricEvent& event);
  // Stops waiting for the session's operations, and returns their callbacks. Their memory is kept
  // until the provider has done with it.
  std::vector<Transport::SendDone> Abandon(uint64_t session, const std::string& address);

  size_t in_flight() const { return operations_.size() - free_.size(); }

 private:
  struct Operation : FabricOperation {
    std::byte* head = nullptr;
    uint64_t session = 0;  // 0 while it is open: abandoned
    bool is_open = false;  // with the provider
    std::string address;   // of a peer that is kept for this operation alone
    Buffer body;
    Transport::SendDone done;
  };
  // An operation whose head is built.
  struct Prepared {
    Operation* operation;
    FabricEndpoint::Piece head;
    FabricEndpoint::Piece body;
  };

  FabricSender(FabricEndpoint* endpoint, std::shared_ptr<FabricArena> arena)
      : endpoint_(endpoint), arena_(std::move(arena)), operations_(kOperations) {}
  absl::StatusOr<Prepared> Prepare(const Item& item);
  absl::Status Begin(const Target& to, const Item& item, Operation* operation, absl::Status began);
  // Returns the descriptor of the body's memory, after copying a body of other memory into the
  // arena.
  absl::StatusOr<void*> DescriptorOf(Buffer* body);

  static constexpr size_t kOperations = 512;

  FabricEndpoint* const endpoint_;
  const std::shared_ptr<FabricArena> arena_;
  std::unique_ptr<BufferPool> copies_;
  std::unique_ptr<FabricMemory> heads_;
  std::unique_ptr<FabricRegion> heads_region_;
  std::vector<Operation> operations_;
  std::vector<Operation*> free_;
  TransportCounter* copied_ = nullptr;  // borrowed
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_SENDER_H_
