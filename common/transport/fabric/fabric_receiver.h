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

// A fixed number of registered buffers into which an endpoint receives the messages of all peers.
// Payloads are lent where they lie while at most half of the buffers are lent, and copied beyond
// that. Not thread-safe, except for the ends of lent payloads, which may outlive it.
class FabricReceiver {
 public:
  static absl::StatusOr<std::unique_ptr<FabricReceiver>> Make(
      FabricEndpoint* endpoint, size_t message_bytes, std::shared_ptr<RetiredAddresses> retired,
      TransportCounter* copied);
  ~FabricReceiver();

  // Hands all free buffers to the provider. Unavailable: it takes no more now. Any other error is
  // final.
  absl::Status PostFree();
  // Returns the message of a kReceived event. It is valid until Lend or Return.
  ByteSpan MessageOf(const FabricEvent& event) const;
  // Returns the message from `offset` on. Its buffer becomes free when the last copy of the
  // returned Buffer is destroyed.
  Buffer Lend(const FabricEvent& event, size_t offset);
  // Frees the event's buffer.
  void Return(const FabricEvent& event);

 private:
  struct Operation : FabricOperation {
    size_t index = 0;
  };
  // The state that lent payloads share with the receiver.
  struct Shared {
    Mutex mu;
    // Indices of buffers that are neither with the provider nor lent.
    std::vector<size_t> free ABSL_GUARDED_BY(mu);
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
