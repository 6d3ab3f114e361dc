#ifndef BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_ENDPOINT_H_
#define BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_ENDPOINT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/bytes.h"
#include "common/transport/fabric/fabric_library.h"

struct fid_mr;

namespace bdn {

// The context of one libfabric operation, by which its completion is recognised. It must not move
// from the call that begins the operation until the completion.
struct FabricOperation {
  alignas(8) std::array<std::byte, 64> providers{};  // scratch memory of the provider
  bool is_receive = false;  // tells receives from sends, whose events come together
};

// A completion of an operation of this end, or the arrival of a peer's write.
struct FabricEvent {
  enum class Kind {
    kDone,      // the memory that `operation` sent or wrote is not read any more
    kReceived,  // `bytes` lie where `operation` was to receive them
    kWritten,   // a peer has written, and sent `immediate` along: all of the write has arrived
    kFailed,    // `operation`, which may be null, has failed: `status` says why
  };
  Kind kind = Kind::kDone;
  FabricOperation* operation = nullptr;
  size_t bytes = 0;
  uint32_t immediate = 0;
  absl::Status status;
};

// A registration of memory with the provider. Once it is destroyed, no peer can write to the memory
// any more.
class FabricRegion {
 public:
  FabricRegion(fid_mr* region, uint64_t key, uint64_t base, void* descriptor);
  ~FabricRegion();
  FabricRegion(const FabricRegion&) = delete;
  FabricRegion& operator=(const FabricRegion&) = delete;

  uint64_t key() const { return key_; }
  // The address by which peers name the first byte.
  uint64_t base() const { return base_; }
  void* descriptor() const { return descriptor_; }
  // Returns how many registrations this process has. Thread-safe.
  static size_t NumAlive();

 private:
  fid_mr* const region_;
  const uint64_t key_;
  const uint64_t base_;
  void* const descriptor_;
};

// The device that owns memory which is registered.
struct FabricDevice {
  enum class Kind { kHost, kCuda };
  Kind kind = Kind::kHost;
  int number = 0;  // CUDA's number of the device (CUdevice)
};

// A reliable datagram endpoint of libfabric. It sends messages to peers by their addresses, and
// writes into memory that peers have granted. It obeys the provider's demands about memory
// (mr_mode), limits and progress. Not thread-safe, except for Register and the destructor of
// FabricRegion.
class FabricEndpoint {
 public:
  struct Options {
    std::string library = kFabricLibrary;
    std::string provider;  // "tcp;ofi_rxm", "verbs;ofi_rxm", "efa"
    // The provider's name of a device ("mlx5_0", "eth0"); empty takes its first.
    std::string domain;
    // An address or name of this machine by which peers reach it; empty takes the domain's first.
    std::string interface;
    // Treats memory as the providers of network cards do (FI_MR_LOCAL: memory is registered before
    // anything is sent from it), even if this provider does not ask for it. For tests.
    bool as_card = false;
    // Asks for registration of devices' memory (FI_HMEM), where the provider offers it.
    bool device_memory = false;
  };
  // Opens an endpoint. NotFound: this machine has no such provider, domain or interface; the
  // message lists those that there are.
  static absl::StatusOr<std::unique_ptr<FabricEndpoint>> Open(const Options& options);
  // REQUIRES: all its regions are destroyed. Operations that have not ended get no event any more.
  ~FabricEndpoint();
  FabricEndpoint(const FabricEndpoint&) = delete;
  FabricEndpoint& operator=(const FabricEndpoint&) = delete;

  const std::string& provider() const { return provider_; }
  const std::string& domain() const { return domain_; }
  const std::string& address() const { return address_; }  // for peers' AddPeer
  uint64_t max_message_bytes() const { return max_message_bytes_; }
  // Whether memory must be registered before anything is sent from it.
  bool needs_registered_sends() const { return needs_registered_sends_; }
  // Whether Register takes devices' memory: it was asked for, and the provider offers it.
  bool has_device_memory() const { return has_device_memory_; }

  // Registers memory whose pages are there (touched) already. ResourceExhausted: the limit of
  // locked memory is too small; the message says how much is needed and how to raise the limit.
  // FailedPrecondition: the provider does not offer memory of `device`, or libfabric cannot reach
  // it.
  absl::StatusOr<std::unique_ptr<FabricRegion>> Register(MutableByteSpan bytes,
                                                         bool peers_may_write,
                                                         const FabricDevice& device = {}) const;

  using Peer = uint64_t;
  // Returns the peer at an address. It is the same for the same address until RemovePeer was called
  // as often as AddPeer.
  absl::StatusOr<Peer> AddPeer(const std::string& address);
  void RemovePeer(const std::string& address);
  size_t num_peers() const { return peers_.size(); }

  // Receive, Send and Write begin an operation, which ends in an event of `operation`. Unavailable:
  // the provider takes no more now; call again after Poll. Any other error is final. After an error
  // there is no event.
  absl::Status Receive(MutableByteSpan bytes, void* descriptor, FabricOperation* operation);
  // A part of a message or write, with the descriptor of its registration.
  struct Piece {
    ByteSpan bytes;
    void* descriptor;  // null where memory need not be registered
  };
  absl::Status Send(Peer to, const Piece& head, const Piece& body, FabricOperation* operation);
  // Writes from `address` on into the memory that memory key `key` names. The peer gets an event
  // with `immediate` once all of the write has arrived.
  absl::Status Write(Peer to, const Piece& head, const Piece& body, uint64_t address, uint64_t key,
                     uint32_t immediate, FabricOperation* operation);

  // Appends the events that there are, and lets the provider work. False: there were none.
  bool Poll(std::vector<FabricEvent>* events);
  // A file descriptor that is readable when Poll has something to do; -1 where the provider has
  // none.
  int wait_fd() const { return wait_fd_; }
  // Whether the caller may block on wait_fd() now. If not, there are events to Poll first.
  bool MayWait();
  // Ends all sending and receiving: buffers are not touched afterwards. Only regions may still be
  // destroyed.
  void Close();

 private:
  struct Handles;
  FabricEndpoint() = default;
  absl::Status Choose(const Options& options);
  absl::Status OpenHandles();
  absl::Status OpenQueue();
  bool IsAddressLike(const std::string& address) const;
  absl::Status Error(const char* call, int error) const;
  FabricEvent ReadFailure();

  FabricLibrary library_;
  std::unique_ptr<Handles> handles_;
  std::string provider_;
  std::string domain_;
  std::string address_;
  uint64_t max_message_bytes_ = 0;
  bool needs_registered_sends_ = false;
  bool has_device_memory_ = false;
  int wait_fd_ = -1;
  // By address: the peer, and how often AddPeer has added it.
  std::map<std::string, std::pair<Peer, int>> peers_;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_ENDPOINT_H_
