#include "common/transport/fabric/fabric_wire.h"

#include <random>

#include "gtest/gtest.h"
#include "tests/reference/wire_reference.h"
#include "tests/wire/wire_bytes.h"

namespace bdn {
namespace {

FabricHandshake Welcome() {
  return {.kind = FabricHandshake::Kind::kWelcome,
          .session = 0x1122334455667788,
          .token = 0x99aabbccddeeff00,
          .number = FabricNumber(FabricImmediate{5, 3, 0}.Encode()),
          .message_bytes = 8320,
          .grant = {.key = 0x0102030405060708,
                    .base = 0x7f0000000000,
                    .block_bytes = 32768,
                    .num_blocks = 2048,
                    .immediate = FabricImmediate{5, 3, 0}.Encode()},
          .provider = "shm",
          .address = "fi_shm://7"};
}

// proto/wire_format.md, section 2.
TEST(FabricWireTest, AWelcomeHasTheseBytes) {
  EXPECT_EQ(ToBytes(EncodeFabricHandshake(Welcome()).span()), Unhex("02000000"
                                                                    "01000000"
                                                                    "8877665544332211"
                                                                    "00ffeeddccbbaa99"
                                                                    "43010000"
                                                                    "80200000"
                                                                    "0807060504030201"
                                                                    "0000000000"
                                                                    "7f0000"
                                                                    "00800000"
                                                                    "00080000"
                                                                    "00c05000"
                                                                    "0300"
                                                                    "0a00"
                                                                    "73686d"
                                                                    "66695f73686d3a2f2f37"));
}

TEST(FabricWireTest, APrefixHasTheseBytes) {
  const auto bytes =
      EncodeFabricPrefix({.number = 323, .token = 0x99aabbccddeeff00, .payload_bytes = 0x40});
  EXPECT_EQ(ToBytes(bytes), Unhex("4244464d"
                                  "01000000"
                                  "43010000"
                                  "00000000"
                                  "00ffeeddccbbaa99"
                                  "4000000000000000"));
}

TEST(FabricWireTest, AnImmediateIsItsThreeNumbers) {
  for (const FabricImmediate each :
       {FabricImmediate{0, 0, 0}, FabricImmediate{4095, 63, 16383}, FabricImmediate{1, 2, 3}}) {
    const FabricImmediate read = FabricImmediate::Decode(each.Encode());
    EXPECT_EQ(read.window, each.window);
    EXPECT_EQ(read.generation, each.generation);
    EXPECT_EQ(read.block, each.block);
  }
}

TEST(FabricWireTest, WhatIsSaidComesBack) {
  FabricHandshake refusal{.kind = FabricHandshake::Kind::kRefusal,
                          .session = 7,
                          .refusal = "its fabric-provider is efa"};
  for (const FabricHandshake& said : {Welcome(), refusal}) {
    const auto read = DecodeFabricHandshake(EncodeFabricHandshake(said).span());
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, said);
  }
  refusal.refusal = std::string(600, 'x');
  EXPECT_EQ(DecodeFabricHandshake(EncodeFabricHandshake(refusal).span())->refusal.size(), 512u);
}

// Expects that both decoders make the same of `bytes`.
void CheckAgainstReference(const Bytes& bytes) {
  const ByteSpan span = std::as_bytes(std::span(bytes));
  const auto handshake = DecodeFabricHandshake(span);
  ASSERT_EQ(handshake.ok(), wire_reference::ReadFabricHandshake(bytes).has_value())
      << handshake.status();
  if (handshake.ok()) {
    EXPECT_EQ(ToBytes(EncodeFabricHandshake(*handshake).span()), bytes);
  }
  const auto prefix = DecodeFabricPrefix(span);
  ASSERT_EQ(prefix.ok(), wire_reference::ReadFabricPrefix(bytes).has_value()) << prefix.status();
  if (prefix.ok()) {
    EXPECT_EQ(ToBytes(EncodeFabricPrefix(*prefix)), Bytes(bytes.begin(), bytes.begin() + 32));
  }
}

TEST(FabricWireTest, ChangedBytesAreReadAsTheReferenceReadsThem) {
  std::mt19937_64 random(20260);
  const Bytes said[] = {
      ToBytes(EncodeFabricHandshake(Welcome()).span()),
      ToBytes(EncodeFabricHandshake(
                  {.kind = FabricHandshake::Kind::kRefusal, .session = 9, .refusal = "no"})
                  .span()),
      ToBytes(EncodeFabricPrefix(
          {.kind = FabricPrefix::Kind::kCredits, .number = 1, .count = 3, .token = 4})),
      ToBytes(EncodeFabricPrefix({.number = 1, .token = 4, .payload_bytes = 5}))};
  for (int i = 0; i < 40000; ++i) {
    Bytes bytes = said[i % std::size(said)];
    for (uint64_t changes = random() % 3; changes > 0; --changes) {
      uint8_t& byte = bytes[random() % bytes.size()];
      byte = random() % 2 == 0 ? static_cast<uint8_t>(random()) : byte ^ (1 << random() % 8);
    }
    if (random() % 8 == 0) bytes.resize(random() % (bytes.size() + 8));
    CheckAgainstReference(bytes);
  }
}

TEST(FabricWireTest, NamesTheFieldThatIsWrong) {
  FabricHandshake said = Welcome();
  said.grant.block_bytes = 4097;
  EXPECT_NE(DecodeFabricHandshake(EncodeFabricHandshake(said).span())
                .status()
                .message()
                .find("block_bytes 4097"),
            absl::string_view::npos);
  said = Welcome();
  said.grant.base = ~uint64_t{0} - 5;
  EXPECT_FALSE(DecodeFabricHandshake(EncodeFabricHandshake(said).span()).ok());
}

}  // namespace
}  // namespace bdn
