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

// How many blocks a frame takes, its head included.
inline constexpr uint32_t BlocksOf(uint64_t frame_bytes, uint32_t block_bytes) {
  return static_cast<uint32_t>((frame_bytes + block_bytes - 1) / block_bytes);
}

// Memory that one peer writes frames to, in blocks, and that is read where it lies: what a Buffer of it
// still shows is not granted again. The peer cannot be kept from writing, so payloads are lent
// (Frame::is_lent). Arrive, Want, TakeReleased and Revoke are the poller's; buffers go on any thread,
// and may outlive the window's transport.
class FabricWindow : public std::enable_shared_from_this<FabricWindow> {
 public:
  struct Options {
    uint32_t block_bytes = 0;
    uint32_t num_blocks = 0;
    uint32_t immediate = 0;  // of its first block
    uint64_t token = 0;
    uint64_t max_payload_bytes = 0;
    TransportCounter* copied = nullptr;  // borrowed by Arrive
    // Runs on any thread, under no lock of ours: TakeReleased has something that should be told now.
    std::function<void()> released;
  };
  // REQUIRES: `endpoint` outlives Revoke.
  static absl::StatusOr<std::shared_ptr<FabricWindow>> Make(
      const FabricEndpoint& endpoint, Options options, std::shared_ptr<RetiredAddresses> retired);

  FabricGrant grant() const { return grant_; }

  enum class Arrival {
    kFrame,
    kMalformed,  // nothing that can be read; whoever wrote it
    kBroken,     // the peer breaks the rules
  };
  // The peer says that a frame begins at `block`.
  Arrival Arrive(uint32_t block, Frame* frame);
  // The peer waits for blocks.
  void Want();
  // The first blocks of all frames that were read since the last time.
  std::vector<uint32_t> TakeReleased();
  // From now on nobody can write to it; what has come can still be read.
  void Revoke() { region_.reset(); }

 private:
  FabricWindow(Options options, std::unique_ptr<FabricMemory> memory)
      : options_(std::move(options)), memory_(std::move(memory)), runs_(options_.num_blocks) {}

  bool Claim(uint32_t block, uint32_t count, bool* lends_more);
  void Release(uint32_t block);

  const Options options_;
  const std::unique_ptr<FabricMemory> memory_;
  // The poller's.
  FabricGrant grant_;
  std::unique_ptr<FabricRegion> region_;

  Mutex mu_;
  struct Run {
    bool is_held = false;  // by a frame that somebody reads
    uint32_t count = 0;    // of the frame that begins here; else 0
  };
  std::vector<Run> runs_ ABSL_GUARDED_BY(mu_);  // by block
  uint32_t held_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<uint32_t> released_ ABSL_GUARDED_BY(mu_);
  uint32_t released_blocks_ ABSL_GUARDED_BY(mu_) = 0;
  bool is_wanted_ ABSL_GUARDED_BY(mu_) = false;
  bool has_said_ ABSL_GUARDED_BY(mu_) = false;
};

// What a peer has granted us: who writes which of its blocks. Not thread-safe.
class FabricPeerWindow {
 public:
  explicit FabricPeerWindow(const FabricGrant& grant)
      : grant_(grant), free_(grant.num_blocks), runs_(grant.num_blocks) {}

  // Longer ones never fit well enough: of frames, head included.
  uint64_t max_frame_bytes() const { return grant_.bytes() / 4; }
  struct Place {
    uint32_t block;
    uint64_t address;
    uint64_t key;
    uint32_t immediate;
  };
  // Nothing while there is no room. REQUIRES: frame_bytes > 0.
  std::optional<Place> Take(uint64_t frame_bytes);
  // The peer has read the frame that begins there. False: none does.
  bool Give(uint32_t block);

 private:
  const FabricGrant grant_;
  FreeRanges free_;
  std::vector<uint32_t> runs_;  // by first block: of frames that the peer has not read
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_WINDOW_H_
