#include "common/transport/fabric/fabric_wire.h"

#include <bit>
#include <cstring>
#include <string_view>

#include "common/base/endian.h"
#include "common/base/status.h"

namespace bdn {
namespace {

constexpr size_t kFixedBytes = 64;  // before the texts
constexpr size_t kMostProviderBytes = 64;
constexpr size_t kMostAddressBytes = 256;
constexpr size_t kMostRefusalBytes = 512;
enum HandshakeField : size_t {
  kKindAt = 0,
  kVersionAt = 4,
  kSessionAt = 8,
  kTokenAt = 16,
  kNumberAt = 24,
  kMessageBytesAt = 28,
  kKeyAt = 32,
  kBaseAt = 40,
  kBlockBytesAt = 48,
  kNumBlocksAt = 52,
  kImmediateAt = 56,
  kTextBytesAt = 60,
  kAddressBytesAt = 62,
};
enum PrefixField : size_t {
  kPrefixMagicAt = 0,
  kPrefixKindAt = 4,
  kPrefixNumberAt = 8,
  kPrefixCountAt = 12,
  kPrefixTokenAt = 16,
  kPrefixPayloadBytesAt = 24,
};

std::string TextOf(ByteSpan bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

absl::Status CheckGrant(const FabricGrant& grant, uint32_t number) {
  if (number != FabricNumber(grant.immediate)) {
    return InvalidArgument("fabric handshake: number %d with immediate 0x%08x", number,
                           grant.immediate);
  }
  if (!std::has_single_bit(grant.block_bytes) || grant.block_bytes < kLeastFabricBlockBytes ||
      grant.block_bytes > kMostFabricBlockBytes) {
    return InvalidArgument("fabric handshake: block_bytes %d, must be a power of 2 of %d to %d",
                           grant.block_bytes, kLeastFabricBlockBytes, kMostFabricBlockBytes);
  }
  const FabricImmediate first = FabricImmediate::Decode(grant.immediate);
  if (grant.num_blocks == 0 || grant.num_blocks > kMostFabricBlocks || first.block != 0) {
    return InvalidArgument("fabric handshake: %d blocks from immediate 0x%08x on", grant.num_blocks,
                           grant.immediate);
  }
  // A writer adds the block's offset to the base: the sum must not wrap around to other memory.
  if (grant.base + grant.bytes() < grant.base) {
    return InvalidArgument("fabric handshake: base 0x%x and %d bytes wrap around", grant.base,
                           grant.bytes());
  }
  return absl::OkStatus();
}

// Reads a refusal. All fields between the session and the length of the text must be zero.
absl::StatusOr<FabricHandshake> DecodeRefusal(ByteSpan bytes, FabricHandshake handshake) {
  const size_t text_bytes = LoadLittle<uint16_t>(bytes, kTextBytesAt);
  for (size_t at = kTokenAt; at < kTextBytesAt; ++at) {
    if (bytes[at] != std::byte{0}) {
      return InvalidArgument("fabric handshake: a refusal with byte %d not zero", at);
    }
  }
  if (LoadLittle<uint16_t>(bytes, kAddressBytesAt) != 0 || text_bytes > kMostRefusalBytes ||
      bytes.size() != kFixedBytes + text_bytes) {
    return InvalidArgument("fabric handshake: a refusal of %d bytes whose text has %d",
                           bytes.size(), text_bytes);
  }
  handshake.refusal = TextOf(bytes.subspan(kFixedBytes));
  return handshake;
}

}  // namespace

Buffer EncodeFabricHandshake(const FabricHandshake& handshake) {
  const bool is_refusal = handshake.kind == FabricHandshake::Kind::kRefusal;
  const std::string_view text =
      is_refusal ? std::string_view(handshake.refusal).substr(0, kMostRefusalBytes)
                 : std::string_view(handshake.provider);
  const std::string_view address = is_refusal ? std::string_view() : handshake.address;
  Buffer buffer = Buffer::Allocate(kFixedBytes + text.size() + address.size());
  const MutableByteSpan out = buffer.mutable_span();
  std::memset(out.data(), 0, out.size());
  StoreLittle(out, kKindAt, static_cast<uint32_t>(handshake.kind));
  StoreLittle(out, kVersionAt, kFabricVersion);
  StoreLittle(out, kSessionAt, handshake.session);
  StoreLittle(out, kTextBytesAt, static_cast<uint16_t>(text.size()));
  std::memcpy(out.data() + kFixedBytes, text.data(), text.size());
  if (is_refusal) return buffer;
  StoreLittle(out, kTokenAt, handshake.token);
  StoreLittle(out, kNumberAt, handshake.number);
  StoreLittle(out, kMessageBytesAt, handshake.message_bytes);
  StoreLittle(out, kKeyAt, handshake.grant.key);
  StoreLittle(out, kBaseAt, handshake.grant.base);
  StoreLittle(out, kBlockBytesAt, handshake.grant.block_bytes);
  StoreLittle(out, kNumBlocksAt, handshake.grant.num_blocks);
  StoreLittle(out, kImmediateAt, handshake.grant.immediate);
  StoreLittle(out, kAddressBytesAt, static_cast<uint16_t>(address.size()));
  std::memcpy(out.data() + kFixedBytes + text.size(), address.data(), address.size());
  return buffer;
}

absl::StatusOr<FabricHandshake> DecodeFabricHandshake(ByteSpan bytes) {
  if (bytes.size() < kFixedBytes) {
    return InvalidArgument("fabric handshake: %d bytes, at least %d", bytes.size(), kFixedBytes);
  }
  if (const auto version = LoadLittle<uint32_t>(bytes, kVersionAt); version != kFabricVersion) {
    return InvalidArgument("fabric handshake: version %d, this is %d", version, kFabricVersion);
  }
  const auto kind = LoadLittle<uint32_t>(bytes, kKindAt);
  if (kind < 1 || kind > 3) return InvalidArgument("fabric handshake: unknown kind %d", kind);
  FabricHandshake handshake{.kind = static_cast<FabricHandshake::Kind>(kind),
                            .session = LoadLittle<uint64_t>(bytes, kSessionAt)};
  if (handshake.session == 0) return InvalidArgument("fabric handshake: session 0");
  if (handshake.kind == FabricHandshake::Kind::kRefusal) return DecodeRefusal(bytes, handshake);
  handshake.token = LoadLittle<uint64_t>(bytes, kTokenAt);
  handshake.number = LoadLittle<uint32_t>(bytes, kNumberAt);
  handshake.message_bytes = LoadLittle<uint32_t>(bytes, kMessageBytesAt);
  handshake.grant = {.key = LoadLittle<uint64_t>(bytes, kKeyAt),
                     .base = LoadLittle<uint64_t>(bytes, kBaseAt),
                     .block_bytes = LoadLittle<uint32_t>(bytes, kBlockBytesAt),
                     .num_blocks = LoadLittle<uint32_t>(bytes, kNumBlocksAt),
                     .immediate = LoadLittle<uint32_t>(bytes, kImmediateAt)};
  if (handshake.token == 0) return InvalidArgument("fabric handshake: token 0");
  if (handshake.message_bytes < kFabricHeadBytes) {
    return InvalidArgument("fabric handshake: message_bytes %d, at least %d",
                           handshake.message_bytes, kFabricHeadBytes);
  }
  BDN_RETURN_IF_ERROR(CheckGrant(handshake.grant, handshake.number));
  const size_t provider_bytes = LoadLittle<uint16_t>(bytes, kTextBytesAt);
  const size_t address_bytes = LoadLittle<uint16_t>(bytes, kAddressBytesAt);
  if (provider_bytes == 0 || provider_bytes > kMostProviderBytes || address_bytes == 0 ||
      address_bytes > kMostAddressBytes ||
      bytes.size() != kFixedBytes + provider_bytes + address_bytes) {
    return InvalidArgument("fabric handshake: %d bytes with a provider of %d and an address of %d",
                           bytes.size(), provider_bytes, address_bytes);
  }
  handshake.provider = TextOf(bytes.subspan(kFixedBytes, provider_bytes));
  handshake.address = TextOf(bytes.subspan(kFixedBytes + provider_bytes));
  return handshake;
}

std::array<std::byte, kFabricPrefixBytes> EncodeFabricPrefix(const FabricPrefix& prefix) {
  std::array<std::byte, kFabricPrefixBytes> bytes{};
  const MutableByteSpan out(bytes);
  StoreLittle(out, kPrefixMagicAt, kFabricMagic);
  StoreLittle(out, kPrefixKindAt, static_cast<uint32_t>(prefix.kind));
  StoreLittle(out, kPrefixNumberAt, prefix.number);
  StoreLittle(out, kPrefixCountAt, prefix.count);
  StoreLittle(out, kPrefixTokenAt, prefix.token);
  StoreLittle(out, kPrefixPayloadBytesAt, prefix.payload_bytes);
  return bytes;
}

absl::StatusOr<FabricPrefix> DecodeFabricPrefix(ByteSpan bytes) {
  if (bytes.size() < kFabricPrefixBytes) {
    return InvalidArgument("fabric message: %d bytes, at least %d", bytes.size(),
                           kFabricPrefixBytes);
  }
  if (const auto magic = LoadLittle<uint32_t>(bytes, kPrefixMagicAt); magic != kFabricMagic) {
    return InvalidArgument("fabric message: magic 0x%08x", magic);
  }
  const auto kind = LoadLittle<uint32_t>(bytes, kPrefixKindAt);
  if (kind < 1 || kind > 3) return InvalidArgument("fabric message: unknown kind %d", kind);
  const FabricPrefix prefix{.kind = static_cast<FabricPrefix::Kind>(kind),
                            .number = LoadLittle<uint32_t>(bytes, kPrefixNumberAt),
                            .count = LoadLittle<uint32_t>(bytes, kPrefixCountAt),
                            .token = LoadLittle<uint64_t>(bytes, kPrefixTokenAt),
                            .payload_bytes = LoadLittle<uint64_t>(bytes, kPrefixPayloadBytesAt)};
  const bool may_count = prefix.kind == FabricPrefix::Kind::kCredits;
  const bool may_carry = prefix.kind == FabricPrefix::Kind::kFrame;
  if ((prefix.count != 0) != may_count || (prefix.payload_bytes != 0 && !may_carry)) {
    return InvalidArgument("fabric message of kind %d: count %d, payload_bytes %d", kind,
                           prefix.count, prefix.payload_bytes);
  }
  return prefix;
}

}  // namespace bdn
