#include "common/base/draw.h"

#include <array>
#include <cstdint>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bdn {
namespace {

using ::testing::ElementsAre;

constexpr Draw::Identity kIdentity = {.run_seed = 42,
                                      .tensor_name_hash = 0x0123456789abcdef,
                                      .partition = 3,
                                      .step = 1000,
                                      .purpose = DrawPurpose::kServerEncode,
                                      .rank = 5};

std::vector<uint32_t> FirstWords(const Draw& draw) {
  return {draw.Word(0), draw.Word(1), draw.Word(2), draw.Word(1000000)};
}

// Pinned: replicas of different builds must draw alike, and old runs must repeat.
TEST(Draw, NumbersArePinned) {
  const Draw draw(kIdentity);
  EXPECT_EQ(draw.k0(), 0x3a788f16u);
  EXPECT_EQ(draw.k1(), 0xed65d6b7u);
  EXPECT_THAT(FirstWords(draw), ElementsAre(0xc5f65f73u, 0xa9f8e5cbu, 0x46fd704au, 0xf838a2cau));
  EXPECT_THAT(FirstWords(Draw()), ElementsAre(0xe73a27bfu, 0x425d00f7u, 0x3a4cc5e9u, 0x497507e4u));
  EXPECT_EQ(Draw::HashName(""), 0xf52a15e9a9b5e89bu);
  EXPECT_EQ(Draw::HashName("layer.0.weight"), 0x1cd17e499765d3d2u);
}

TEST(Draw, EveryPartOfTheIdentityCounts) {
  std::set<std::vector<uint32_t>> seen;
  seen.insert(FirstWords(Draw(kIdentity)));
  const auto with = [&](auto change) {
    Draw::Identity other = kIdentity;
    change(other);
    seen.insert(FirstWords(Draw(other)));
  };
  with([](auto& id) { id.run_seed = 43; });
  with([](auto& id) { id.tensor_name_hash += 1; });
  with([](auto& id) { id.partition = 4; });
  with([](auto& id) { id.step = 1001; });
  with([](auto& id) { id.purpose = DrawPurpose::kWorkerEncode; });
  with([](auto& id) { id.rank = Draw::kSharedRank; });
  EXPECT_EQ(seen.size(), 7u);
}

TEST(Draw, AnElementOwnsHalfAWord) {
  const Draw draw(kIdentity);
  EXPECT_EQ(draw.Bits16(0), draw.Word(0) & 0xffff);
  EXPECT_EQ(draw.Bits16(1), draw.Word(0) >> 16);
  EXPECT_EQ(draw.Bits16(7), draw.Word(3) >> 16);
}

TEST(Draw, ComesBackFromItsKeys) {
  const Draw draw(kIdentity);
  EXPECT_EQ(FirstWords(Draw::FromKeys(draw.k0(), draw.k1())), FirstWords(draw));
}

TEST(Draw, BitsAreSpreadEvenly) {
  const Draw draw(kIdentity);
  constexpr int kWords = 100000;
  std::array<int, 32> ones{};
  for (uint32_t j = 0; j < kWords; ++j) {
    for (int bit = 0; bit < 32; ++bit) ones[bit] += static_cast<int>(draw.Word(j) >> bit & 1);
  }
  for (const int count : ones) EXPECT_NEAR(count, kWords / 2, 1000);  // six standard deviations
}

TEST(HashName, DiffersForNamesThatDifferLittle) {
  EXPECT_NE(Draw::HashName("layer.1"), Draw::HashName("layer.2"));
  EXPECT_NE(Draw::HashName("ab"), Draw::HashName("ba"));
}

}  // namespace
}  // namespace bdn
