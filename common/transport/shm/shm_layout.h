#ifndef BANDONEON_COMMON_TRANSPORT_SHM_SHM_LAYOUT_H_
#define BANDONEON_COMMON_TRANSPORT_SHM_SHM_LAYOUT_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/base/link_security.h"
#include "common/wire/frame.h"

// What two processes of one host share, and say to each other over their socket: proto/wire_format.md,
// section 2. Both ends are of one build's layout, or the version differs.

namespace bdn {

inline constexpr uint32_t kShmMagic = 0x4D484442u;  // "BDHM" in the order of the bytes
inline constexpr uint32_t kShmVersion = 1;
// Frames of one direction that are published and not released yet; a power of two.
inline constexpr uint32_t kShmSlots = 1024;
inline constexpr size_t kShmAlignment = 8;     // of payloads
inline constexpr uint32_t kMaxSegments = 256;  // of one end
inline constexpr uint64_t kMaxSegmentBytes = kMaxPayloadBytes + 4096;

// A published frame, as 64-bit words so that each is read once and whole.
struct ShmFrame {
  std::array<std::byte, kHeaderBytes> header;
  uint32_t token;    // to be released by
  uint32_t segment;  // of the sender's arena
  uint64_t offset;   // in the segment
  uint64_t bytes;    // of the payload
  uint64_t reserved;
};
static_assert(sizeof(ShmFrame) == 128);
using ShmFrameWords = std::array<std::atomic<uint64_t>, sizeof(ShmFrame) / sizeof(uint64_t)>;

// What one end writes and the other reads. Each count is of this connection and only rises.
struct ShmControl {
  alignas(64) std::atomic<uint64_t> published;  // frames
  alignas(64) std::atomic<uint64_t> released;   // of the peer's frames
  alignas(64) std::atomic<uint32_t> sleeps;     // odd while this end waits on its socket
  // Not 0: this end waits for releases; else they may be noticed with the next frame.
  std::atomic<uint32_t> wants_releases;
  alignas(64) std::array<ShmFrameWords, kShmSlots> frames;          // the last published
  alignas(64) std::array<std::atomic<uint32_t>, kShmSlots> tokens;  // the last released
};
static_assert(std::atomic<uint64_t>::is_always_lock_free &&
              std::atomic<uint32_t>::is_always_lock_free);

// Packets of the socket. Each begins with its kind.
enum class ShmPacket : uint32_t {
  kHello = 1,    // of who connects: ShmHello and the descriptor of its ShmControl
  kWelcome = 2,  // the answer: a descriptor of the listener's
  kSegment = 3,  // ShmSegment, and its descriptor: of the next segment
  kWake = 4,     // there is something to read, or was
  kClosing = 5,  // no more frames come from this end
};
inline constexpr size_t kMaxSecretBytes = 64;
struct ShmHello {
  ShmPacket kind = ShmPacket::kHello;
  uint32_t magic = kShmMagic;
  uint32_t version = kShmVersion;
  uint32_t secret_bytes = 0;
  std::array<unsigned char, PublicKey::kBytes> key{};
  std::array<char, kMaxSecretBytes> secret{};
};
struct ShmSegment {
  ShmPacket kind = ShmPacket::kSegment;
  uint32_t index = 0;
  uint64_t bytes = 0;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_SHM_SHM_LAYOUT_H_
