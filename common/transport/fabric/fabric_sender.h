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

// What is on its way out of an endpoint: a fixed number of sends and writes, the head of each in
// registered memory, the payload where its encoder put it. Not thread-safe: the poller's.
class FabricSender {
 public:
  // `arena` is null where nothing need be registered. `endpoint` is borrowed.
  static absl::StatusOr<std::unique_ptr<FabricSender>> Make(
      FabricEndpoint* endpoint, std::shared_ptr<FabricArena> arena,
      std::shared_ptr<RetiredAddresses> retired, TransportCounter* copied);
  ~FabricSender();

  struct Target {
    FabricEndpoint::Peer peer;
    const std::string& address;  // AddPeer's
    uint64_t session;            // whose it is, to Abandon
  };
  struct Item {
    FabricPrefix prefix;
    const FrameHeader* header = nullptr;  // null: the body follows the prefix
    Buffer* body;                         // taken when it was sent
    Transport::SendDone* done = nullptr;  // taken when it was sent; null for none
  };
  // OK: it is on its way. Unavailable: not now, and nothing was taken. Others: never.
  absl::Status Send(const Target& to, const Item& item);
  absl::Status Write(const Target& to, const Item& item, const FabricPeerWindow::Place& place);

  struct Ended {
    uint64_t session = 0;  // 0: was abandoned
    Transport::SendDone done;
  };
  // What an event of one of its operations means.
  Ended OnEvent(const FabricEvent& event);
  // What this session has on its way is not waited for any more. It is kept until the provider is done
  // with it.
  std::vector<Transport::SendDone> Abandon(uint64_t session, const std::string& address);

  size_t in_flight() const { return operations_.size() - free_.size(); }

 private:
  struct Operation : FabricOperation {
    std::byte* head = nullptr;
    uint64_t session = 0;  // 0 and on its way: abandoned
    bool is_open = false;
    std::string address;  // of a peer that is kept for it alone
    Buffer body;
    Transport::SendDone done;
  };
  struct Prepared {
    Operation* operation;
    FabricEndpoint::Piece head;
    FabricEndpoint::Piece body;
  };

  FabricSender(FabricEndpoint* endpoint, std::shared_ptr<FabricArena> arena)
      : endpoint_(endpoint), arena_(std::move(arena)), operations_(kOperations) {}
  absl::StatusOr<Prepared> Prepare(const Item& item);
  absl::Status Begin(const Target& to, const Item& item, Operation* operation, absl::Status began);
  // A body of other memory is copied into the arena's.
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
