#ifndef BANDONEON_COMMON_TRANSPORT_SHM_SHM_LAYOUT_H_
#define BANDONEON_COMMON_TRANSPORT_SHM_SHM_LAYOUT_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/base/link_security.h"
#include "common/wire/frame.h"

// The memory that two processes of one machine share, and the packets of their socket:
// proto/wire_format.md, section 2. Both ends have the same layout, or their versions differ.

namespace bdn {

inline constexpr uint32_t kShmMagic = 0x4D484442u;  // "BDHM" in the order of the bytes
inline constexpr uint32_t kShmVersion = 2;
// The most frames of one direction that are published and not yet released; a power of two.
inline constexpr uint32_t kShmSlots = 1024;
inline constexpr size_t kShmAlignment = 8;     // of payloads, in bytes
inline constexpr uint32_t kMaxSegments = 256;  // that one end may have
inline constexpr uint64_t kMaxSegmentBytes = kMaxPayloadBytes + 4096;

// A published frame, copied as 64-bit words so that each word is read once and whole.
struct ShmFrame {
  std::array<std::byte, kHeaderBytes> header;
  uint32_t token;    // names the frame when it is released
  uint32_t segment;  // index in the sender's arena
  uint64_t offset;   // in the segment
  uint64_t bytes;    // of the payload
  uint64_t reserved;
};
static_assert(sizeof(ShmFrame) == 128);
using ShmFrameWords = std::array<std::atomic<uint64_t>, sizeof(ShmFrame) / sizeof(uint64_t)>;

// The control memory of one end, which that end writes and the other reads. Each count is of this
// connection and only rises.
struct ShmControl {
  alignas(64) std::atomic<uint64_t> published;  // frames that this end has published
  alignas(64) std::atomic<uint64_t> released;   // frames of the peer that this end has released
  alignas(64) std::atomic<uint32_t> sleeps;     // odd while this end waits on its socket
  // Not 0 where this end waits for releases; else it notices them with its next frame.
  std::atomic<uint32_t> wants_releases;
  // Not 0 once this end reads nothing more of what the peer has sent.
  std::atomic<uint32_t> is_done;
  alignas(64) std::array<ShmFrameWords, kShmSlots> frames;  // the last kShmSlots published ones
  // The last kShmSlots released frames.
  alignas(64) std::array<std::atomic<uint32_t>, kShmSlots> tokens;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free &&
              std::atomic<uint32_t>::is_always_lock_free);

// The kinds of packets of the socket. Each packet begins with its kind.
enum class ShmPacket : uint32_t {
  kHello = 1,    // from the connector: ShmHello and the descriptor of its ShmControl
  kWelcome = 2,  // the answer: the descriptor of the listener's ShmControl
  kSegment = 3,  // ShmSegment and the descriptor of the sender's next segment
  kWake = 4,     // there is something to read, or there was
  kClosing = 5,  // no more frames come from this end
};
inline constexpr size_t kMaxSecretBytes = 64;
// The first packet of a connection: the connector shows its key and the job's secret.
struct ShmHello {
  ShmPacket kind = ShmPacket::kHello;
  uint32_t magic = kShmMagic;
  uint32_t version = kShmVersion;
  uint32_t secret_bytes = 0;
  std::array<unsigned char, PublicKey::kBytes> key{};
  std::array<char, kMaxSecretBytes> secret{};
};
// The packet that hands over a segment.
struct ShmSegment {
  ShmPacket kind = ShmPacket::kSegment;
  uint32_t index = 0;
  uint64_t bytes = 0;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_SHM_SHM_LAYOUT_H_
