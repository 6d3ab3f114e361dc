#ifndef BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_WIRE_H_
#define BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_WIRE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/buffer.h"
#include "common/base/bytes.h"
#include "common/wire/frame.h"

// What two ends of a fabric say to each other: over the network's connection when they meet, and
// before each frame afterwards. proto/wire_format.md, section 2, is the norm. Pure.

namespace bdn {

inline constexpr uint32_t kFabricVersion = 1;
inline constexpr uint32_t kFabricMagic = 0x4D464442u;  // "BDFM" in the order of the bytes
inline constexpr size_t kFabricPrefixBytes = 32;
// What lies before a payload, in a message and in a window.
inline constexpr size_t kFabricHeadBytes = kFabricPrefixBytes + kHeaderBytes;
inline constexpr uint32_t kMostFabricBlocks = 1u << 14;   // of a window
inline constexpr uint32_t kMostFabricWindows = 1u << 12;  // of an endpoint, now
inline constexpr uint32_t kFabricGenerations = 1u << 6;   // of a window's number
inline constexpr uint32_t kLeastFabricBlockBytes = 4096;
inline constexpr uint32_t kMostFabricBlockBytes = 1u << 20;

// The four bytes that come with a write: which block of which window it fills from.
struct FabricImmediate {
  uint32_t window = 0;      // below kMostFabricWindows
  uint32_t generation = 0;  // below kFabricGenerations: of what the window was granted for
  uint32_t block = 0;       // below kMostFabricBlocks

  uint32_t Encode() const { return window << 20 | generation << 14 | block; }
  static FabricImmediate Decode(uint32_t bits) {
    return {bits >> 20, bits >> 14 & (kFabricGenerations - 1), bits & (kMostFabricBlocks - 1)};
  }
};

// A session's name at its owner: the immediate data of its window without the block.
inline uint32_t FabricNumber(uint32_t immediate) { return immediate >> 14; }

// Memory that its owner lets one peer write to.
struct FabricGrant {
  uint64_t key = 0;
  uint64_t base = 0;  // what its first byte is addressed by
  uint32_t block_bytes = 0;
  uint32_t num_blocks = 0;
  uint32_t immediate = 0;  // of its first block

  uint64_t bytes() const { return uint64_t{block_bytes} * num_blocks; }
  bool operator==(const FabricGrant&) const = default;
};

// The payload of a frame of FrameType::kTransport by which two ends meet over a fabric.
struct FabricHandshake {
  // The frame's sub-types. Those of other transports have other numbers.
  enum class Kind : uint32_t {
    kHello = 1,    // of who connects; said again, to hear that the other end is still there
    kWelcome = 2,  // the answer
    kRefusal = 3,  // the answer of who cannot
  };
  Kind kind = Kind::kHello;
  uint64_t session = 0;  // the connector's number for this meeting, which the answer repeats; not 0
  // The fields from here on are the sender's, and a refusal has none of them. Its peers show the
  // token in everything that they send to it.
  uint64_t token = 0;          // not 0; nobody can guess it
  uint32_t number = 0;         // its name for the session
  uint32_t message_bytes = 0;  // the longest message that it takes
  FabricGrant grant;
  std::string provider;  // at most 64 bytes, not empty
  std::string address;   // the provider's own, at most 256 bytes, not empty
  std::string refusal;   // why: at most 512 bytes

  bool operator==(const FabricHandshake&) const = default;
};

Buffer EncodeFabricHandshake(const FabricHandshake& handshake);
// InvalidArgument names the field that is wrong. `bytes` may be of any size.
absl::StatusOr<FabricHandshake> DecodeFabricHandshake(ByteSpan bytes);

// Begins each message, and each frame in a window.
struct FabricPrefix {
  enum class Kind : uint32_t {
    kFrame = 1,        // header and payload follow
    kCredits = 2,      // `count` blocks, u32 each: the first of each frame that was read
    kWantCredits = 3,  // the sender waits for some: nothing follows
  };
  Kind kind = Kind::kFrame;
  uint32_t number = 0;  // the receiver's name for the session
  uint32_t count = 0;
  uint64_t token = 0;          // the receiver's
  uint64_t payload_bytes = 0;  // of a frame

  bool operator==(const FabricPrefix&) const = default;
};

std::array<std::byte, kFabricPrefixBytes> EncodeFabricPrefix(const FabricPrefix& prefix);
// InvalidArgument: too short, another magic, an unknown kind, or a field that its kind does not have.
absl::StatusOr<FabricPrefix> DecodeFabricPrefix(ByteSpan bytes);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_WIRE_H_
