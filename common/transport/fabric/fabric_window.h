#ifndef BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_WINDOW_H_
#define BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_WINDOW_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "common/transport/fabric/fabric_endpoint.h"
#include "common/transport/fabric/fabric_memory.h"
#include "common/transport/fabric/fabric_wire.h"
#include "common/transport/free_ranges.h"
#include "common/transport/transport_counters.h"
#include "common/wire/frame.h"

namespace bdn {

// Returns the number of blocks that a frame takes, its head included.
inline constexpr uint32_t BlocksOf(uint64_t frame_bytes, uint32_t block_bytes) {
  return static_cast<uint32_t>((frame_bytes + block_bytes - 1) / block_bytes);
}

// Memory, divided into blocks, to which one peer writes frames. Payloads are read where they lie:
// blocks that a Buffer still shows are not given back to the peer. The peer cannot be kept from
// writing to them, so payloads are lent (Frame::is_lent). Only the poller calls Arrive, Want,
// TakeReleased and Revoke; buffers end on any thread, and may outlive the transport.
class FabricWindow : public std::enable_shared_from_this<FabricWindow> {
 public:
  struct Options {
    uint32_t block_bytes = 0;
    uint32_t num_blocks = 0;
    uint32_t immediate = 0;  // immediate data of the first block
    uint64_t token = 0;      // shown by each frame of the peer
    uint64_t max_payload_bytes = 0;
    TransportCounter* copied = nullptr;  // borrowed by Arrive
    // Says that TakeReleased has blocks which the peer should be told of now. Runs on any thread,
    // under no lock of the window.
    std::function<void()> released;
  };
  // REQUIRES: `endpoint` outlives Revoke.
  static absl::StatusOr<std::shared_ptr<FabricWindow>> Make(
      const FabricEndpoint& endpoint, Options options, std::shared_ptr<RetiredAddresses> retired);

  FabricGrant grant() const { return grant_; }

  enum class Arrival {
    kFrame,
    kMalformed,  // nothing that can be read; its writer is not known
    kBroken,     // the peer has broken the rules
  };
  // Takes the frame that begins at `block`, as the immediate data of a write says.
  Arrival Arrive(uint32_t block, Frame* frame);
  // Notes that the peer waits for blocks: they are told of as soon as there are any.
  void Want();
  // Returns the first blocks of all frames whose buffers have ended since the last call.
  std::vector<uint32_t> TakeReleased();
  // Ends the registration: nobody can write to the memory any more. Arrived frames can still be
  // read.
  void Revoke() { region_.reset(); }

 private:
  FabricWindow(Options options, std::unique_ptr<FabricMemory> memory)
      : options_(std::move(options)), memory_(std::move(memory)), runs_(options_.num_blocks) {}

  bool Claim(uint32_t block, uint32_t count, bool* lends_more);
  void Release(uint32_t block);

  const Options options_;
  const std::unique_ptr<FabricMemory> memory_;
  // Used by the poller alone.
  FabricGrant grant_;
  std::unique_ptr<FabricRegion> region_;

  Mutex mu_;
  // The state of one block.
  struct Run {
    bool is_held = false;  // a frame that lies here is still read
    uint32_t count = 0;    // blocks of the frame that begins here; else 0
  };
  std::vector<Run> runs_ ABSL_GUARDED_BY(mu_);  // by block
  uint32_t held_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<uint32_t> released_ ABSL_GUARDED_BY(mu_);
  uint32_t released_blocks_ ABSL_GUARDED_BY(mu_) = 0;
  bool is_wanted_ ABSL_GUARDED_BY(mu_) = false;
  bool has_said_ ABSL_GUARDED_BY(mu_) = false;
};

// The sender's view of a window that a peer has granted: the blocks that are free, and those of
// frames that the peer has not read yet. Not thread-safe.
class FabricPeerWindow {
 public:
  explicit FabricPeerWindow(const FabricGrant& grant)
      : grant_(grant), free_(grant.num_blocks), runs_(grant.num_blocks) {}

  // The longest frame, head included, that goes by this window: a quarter of it.
  uint64_t max_frame_bytes() const { return grant_.bytes() / 4; }
  struct Place {
    uint32_t block;
    uint64_t address;
    uint64_t key;
    uint32_t immediate;
  };
  // Takes blocks for a frame. Returns nothing while there is no room. REQUIRES: frame_bytes > 0.
  std::optional<Place> Take(uint64_t frame_bytes);
  // Frees the blocks of the frame that begins at `block`, which the peer has read. False: none
  // begins there.
  bool Give(uint32_t block);

 private:
  const FabricGrant grant_;
  FreeRanges free_;
  std::vector<uint32_t> runs_;  // by first block: the length of a frame that the peer has not read
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_WINDOW_H_
