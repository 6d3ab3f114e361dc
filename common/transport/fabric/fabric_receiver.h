#ifndef BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_RECEIVER_H_
#define BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_RECEIVER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/buffer.h"
#include "common/base/mutex.h"
#include "common/transport/fabric/fabric_endpoint.h"
#include "common/transport/fabric/fabric_memory.h"
#include "common/transport/transport_counters.h"

namespace bdn {

// Where an endpoint's messages come in, whoever sends them: a fixed number of registered buffers.
// Payloads are read in them, up to half of the buffers at a time, then copied. Not thread-safe, but for
// the ends of what it lends, which may outlive it.
class FabricReceiver {
 public:
  static absl::StatusOr<std::unique_ptr<FabricReceiver>> Make(
      FabricEndpoint* endpoint, size_t message_bytes, std::shared_ptr<RetiredAddresses> retired,
      TransportCounter* copied);
  ~FabricReceiver();

  // Hands the provider the buffers that it has not. Errors but Unavailable are for good.
  absl::Status PostFree();
  // What `event` of kReceived has brought, until Lend or Return.
  ByteSpan MessageOf(const FabricEvent& event) const;
  // The message from `offset` on; its buffer comes back when the last copy goes.
  Buffer Lend(const FabricEvent& event, size_t offset);
  // Nobody needs the event's buffer.
  void Return(const FabricEvent& event);

 private:
  struct Operation : FabricOperation {
    size_t index = 0;
  };
  // Shared with what is lent.
  struct Shared {
    Mutex mu;
    std::vector<size_t> free ABSL_GUARDED_BY(mu);  // not with the provider
    size_t lent ABSL_GUARDED_BY(mu) = 0;
    std::unique_ptr<FabricMemory> memory;
  };

  FabricReceiver(FabricEndpoint* endpoint, size_t message_bytes)
      : endpoint_(endpoint), message_bytes_(message_bytes), operations_(kBuffers) {}
  std::byte* BufferAt(size_t index) const { return shared_->memory->data() + index * stride_; }

  static constexpr size_t kBuffers = 256;

  FabricEndpoint* const endpoint_;
  const size_t message_bytes_;
  size_t stride_ = 0;
  std::vector<Operation> operations_;
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::unique_ptr<FabricRegion> region_;
  TransportCounter* copied_ = nullptr;  // borrowed
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_RECEIVER_H_
