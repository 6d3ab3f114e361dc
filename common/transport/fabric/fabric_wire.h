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

// The bytes that two ends of a fabric exchange: handshakes over the network's connection, and a
// prefix before each frame and message. Section 2 of proto/wire_format.md is the norm. Here bytes
// become structs and back; there is no I/O.

namespace bdn {

inline constexpr uint32_t kFabricVersion = 1;
inline constexpr uint32_t kFabricMagic = 0x4D464442u;  // "BDFM" in the order of the bytes
inline constexpr size_t kFabricPrefixBytes = 32;
// Bytes before a payload, in a message and in a window.
inline constexpr size_t kFabricHeadBytes = kFabricPrefixBytes + kHeaderBytes;
inline constexpr uint32_t kMostFabricBlocks = 1u << 14;   // of a window
inline constexpr uint32_t kMostFabricWindows = 1u << 12;  // of an endpoint at one time
inline constexpr uint32_t kFabricGenerations = 1u << 6;   // of a window's number
inline constexpr uint32_t kLeastFabricBlockBytes = 4096;
inline constexpr uint32_t kMostFabricBlockBytes = 1u << 20;

// The immediate data of a write, four bytes: the window and the first block that it fills.
struct FabricImmediate {
  uint32_t window = 0;      // below kMostFabricWindows
  uint32_t generation = 0;  // below kFabricGenerations: tells owners of one number apart
  uint32_t block = 0;       // below kMostFabricBlocks

  uint32_t Encode() const { return window << 20 | generation << 14 | block; }
  static FabricImmediate Decode(uint32_t bits) {
    return {bits >> 20, bits >> 14 & (kFabricGenerations - 1), bits & (kMostFabricBlocks - 1)};
  }
};

// Returns a session's number at its owner: the immediate data of its window without the block.
inline uint32_t FabricNumber(uint32_t immediate) { return immediate >> 14; }

// A window: memory to which its owner lets one peer write.
struct FabricGrant {
  uint64_t key = 0;   // the provider's memory key
  uint64_t base = 0;  // the address of its first byte, as a writer names it
  uint32_t block_bytes = 0;
  uint32_t num_blocks = 0;
  uint32_t immediate = 0;  // the immediate data of its first block

  uint64_t bytes() const { return uint64_t{block_bytes} * num_blocks; }
  bool operator==(const FabricGrant&) const = default;
};

// The payload of a frame of FrameType::kTransport by which two ends meet over a fabric.
struct FabricHandshake {
  // The frame's sub-types. Those of other transports have other numbers.
  enum class Kind : uint32_t {
    kHello = 1,  // from a connector, which repeats it to learn whether the listener still knows it
    kWelcome = 2,  // the listener's answer
    kRefusal = 3,  // the answer of a listener that cannot meet the connector
  };
  Kind kind = Kind::kHello;
  uint64_t session = 0;  // the connector's number for this meeting, which the answer repeats; not 0
  // The fields from here on describe the sender of the handshake; a refusal has only `refusal`. The
  // other end shows the token in everything that it sends to this one.
  uint64_t token = 0;          // not 0; nobody can guess it
  uint32_t number = 0;         // the sender's number for the session
  uint32_t message_bytes = 0;  // the longest message that the sender takes
  FabricGrant grant;
  std::string provider;  // at most 64 bytes, not empty
  std::string address;   // in the provider's own form, at most 256 bytes, not empty
  std::string refusal;   // the reason of a refusal, at most 512 bytes

  bool operator==(const FabricHandshake&) const = default;
};

Buffer EncodeFabricHandshake(const FabricHandshake& handshake);
// Reads a handshake. InvalidArgument names the field that is wrong. `bytes` may be of any size.
absl::StatusOr<FabricHandshake> DecodeFabricHandshake(ByteSpan bytes);

// The 32 bytes that begin each message, and each frame in a window.
struct FabricPrefix {
  enum class Kind : uint32_t {
    kFrame = 1,    // header and payload follow
    kCredits = 2,  // `count` blocks follow, u32 each: the first block of each frame that was read
    kWantCredits = 3,  // the sender waits for credits: nothing follows
  };
  Kind kind = Kind::kFrame;
  uint32_t number = 0;         // the receiver's number for the session
  uint32_t count = 0;          // of credits
  uint64_t token = 0;          // the receiver's
  uint64_t payload_bytes = 0;  // of a frame

  bool operator==(const FabricPrefix&) const = default;
};

std::array<std::byte, kFabricPrefixBytes> EncodeFabricPrefix(const FabricPrefix& prefix);
// Reads a prefix. InvalidArgument: it is too short, has another magic or an unknown kind, or sets a
// field that its kind does not have.
absl::StatusOr<FabricPrefix> DecodeFabricPrefix(ByteSpan bytes);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_WIRE_H_
