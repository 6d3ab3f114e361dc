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

// What a completion is told by. It stays where it is from the call that began it to its completion.
struct FabricOperation {
  alignas(8) std::array<std::byte, 64> providers{};  // scratch of the provider's
  bool is_receive = false;                           // for who looks at events of several kinds
};

struct FabricEvent {
  enum class Kind {
    kDone,      // what `operation` sent or wrote is not read any more
    kReceived,  // `bytes` lie where `operation` was to receive them
    kWritten,   // a peer has written, and sent `immediate` along: all of it has arrived
    kFailed,    // `operation`, which may be null, did not come to its end: `status` names why
  };
  Kind kind = Kind::kDone;
  FabricOperation* operation = nullptr;
  size_t bytes = 0;
  uint32_t immediate = 0;
  absl::Status status;
};

// Memory that the provider knows, until this goes: then no peer can write to it any more.
class FabricRegion {
 public:
  FabricRegion(fid_mr* region, uint64_t key, uint64_t base, void* descriptor);
  ~FabricRegion();
  FabricRegion(const FabricRegion&) = delete;
  FabricRegion& operator=(const FabricRegion&) = delete;

  uint64_t key() const { return key_; }
  uint64_t base() const { return base_; }  // what peers address its first byte by
  void* descriptor() const { return descriptor_; }
  // How many of this process there are. Thread-safe.
  static size_t NumAlive();

 private:
  fid_mr* const region_;
  const uint64_t key_;
  const uint64_t base_;
  void* const descriptor_;
};

// Whose memory is registered.
struct FabricDevice {
  enum class Kind { kHost, kCuda };
  Kind kind = Kind::kHost;
  int number = 0;  // CUDA's (CUdevice)
};

// A reliable datagram endpoint of libfabric: messages to peers by their addresses, and writes into
// memory that they have granted. It obeys what the provider says of memory (mr_mode), limits and
// progress. Not thread-safe, but Register and what FabricRegion does.
class FabricEndpoint {
 public:
  struct Options {
    std::string library = kFabricLibrary;
    std::string provider;  // "tcp;ofi_rxm", "verbs;ofi_rxm", "efa"
    std::string domain;  // the provider's name of a device ("mlx5_0", "eth0"); empty for its first
    std::string interface;  // an address or name of this host to be reached at; empty for its first
    // Memory as providers of cards want it, also where this one does not: what is sent from is registered
    // (FI_MR_LOCAL). For tests.
    bool as_card = false;
    // Asks for registration of devices' memory (FI_HMEM), where the provider offers it.
    bool device_memory = false;
  };
  // NotFound: there is no such provider, domain or interface here; the message says which there are.
  static absl::StatusOr<std::unique_ptr<FabricEndpoint>> Open(const Options& options);
  // REQUIRES: all its regions have gone. What was begun and has not ended never will.
  ~FabricEndpoint();
  FabricEndpoint(const FabricEndpoint&) = delete;
  FabricEndpoint& operator=(const FabricEndpoint&) = delete;

  const std::string& provider() const { return provider_; }
  const std::string& domain() const { return domain_; }
  const std::string& address() const { return address_; }  // for peers' AddPeer
  uint64_t max_message_bytes() const { return max_message_bytes_; }
  // What is sent from must be registered.
  bool needs_registered_sends() const { return needs_registered_sends_; }
  // Register takes devices' memory: it was asked for, and the provider offers it.
  bool has_device_memory() const { return has_device_memory_; }

  // `bytes` must be there (touched) already. ResourceExhausted: the limit of locked memory is too
  // small; it says how much is needed and how to raise it. FailedPrecondition: of a `device` that the
  // provider does not offer, or its libfabric cannot reach.
  absl::StatusOr<std::unique_ptr<FabricRegion>> Register(MutableByteSpan bytes,
                                                         bool peers_may_write,
                                                         const FabricDevice& device = {}) const;

  using Peer = uint64_t;
  // The same for the same address, until it was removed as often as it was added.
  absl::StatusOr<Peer> AddPeer(const std::string& address);
  void RemovePeer(const std::string& address);
  size_t num_peers() const { return peers_.size(); }

  // Each begins something, which ends in an event of `operation`. Unavailable: the provider takes no
  // more now, try again after Poll; others: it never will, and there is no event.
  absl::Status Receive(MutableByteSpan bytes, void* descriptor, FabricOperation* operation);
  struct Piece {
    ByteSpan bytes;
    void* descriptor;  // null where nothing need be registered
  };
  absl::Status Send(Peer to, const Piece& head, const Piece& body, FabricOperation* operation);
  // To `address` on in the memory that `key` names. The peer's event has `immediate`, once all of it
  // has arrived.
  absl::Status Write(Peer to, const Piece& head, const Piece& body, uint64_t address, uint64_t key,
                     uint32_t immediate, FabricOperation* operation);

  // Adds what has come to an end, and lets the provider work. False: there was nothing.
  bool Poll(std::vector<FabricEvent>* events);
  // A descriptor that can be read when there is something to Poll; -1 where the provider has none.
  int wait_fd() const { return wait_fd_; }
  // Whether wait_fd() may be waited for now.
  bool MayWait();
  // Nothing is sent or received any more, nor are buffers touched; only regions may still be closed.
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
  std::map<std::string, std::pair<Peer, int>> peers_;  // by address: how often it was added
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_ENDPOINT_H_
