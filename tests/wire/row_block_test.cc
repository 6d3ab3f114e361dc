#include "common/wire/row_block.h"

#include <random>
#include <set>

#include "common/wire/packed_ids.h"
#include "gmock/gmock.h"
#include "tests/reference/rows_reference.h"
#include "tests/wire/document_block.h"
#include "tests/wire/wire_bytes.h"

namespace bdn {
namespace {

using Ids = std::vector<uint64_t>;

Bytes Packed(const Ids& ids) {
  Bytes bytes(PackedIdsBytes(ids));
  EXPECT_EQ(PackIds(ids, std::as_writable_bytes(std::span(bytes))), bytes.size());
  return bytes;
}

absl::Status Unpack(const Bytes& bytes, size_t count, Ids* ids) {
  const auto used = UnpackIds(Span(bytes), count, ids);
  if (used.ok()) {
    EXPECT_EQ(*used, bytes.size());
  }
  return used.status();
}

// Ids of about this many bits, rising.
Ids RandomIds(size_t count, int bits, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::set<uint64_t> ids;
  const uint64_t mask = bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
  while (ids.size() < count) ids.insert(random() & mask);
  return Ids(ids.begin(), ids.end());
}

TEST(PackedIds, AreWhatTheDocumentSays) {
  EXPECT_EQ(Packed({}), Bytes());
  EXPECT_EQ(Packed({0}), Bytes({0}));
  EXPECT_EQ(Packed({0, 1, 2}), Bytes({0}));
  EXPECT_EQ(Packed({5}), Bytes({3, 5}));
  // Gaps 3, 0, 4 of three bits: 011 000 100, low bits first.
  EXPECT_EQ(Packed({3, 4, 9}), Bytes({3, 0x03, 0x01}));
  EXPECT_EQ(Packed({~uint64_t{0}}), Bytes({64, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}));
}

TEST(PackedIds, ComeBack) {
  for (const size_t count : {0, 1, 7, 8, 9, 127, 128, 129, 1000}) {
    for (const int bits : {11, 17, 33, 47, 57, 63, 64}) {
      const Ids ids = RandomIds(count, bits, count + static_cast<uint64_t>(bits));
      Ids back;
      ASSERT_TRUE(Unpack(Packed(ids), count, &back).ok());
      EXPECT_EQ(back, ids);
    }
  }
}

TEST(PackedIds, HaveOneEncodingOnly) {
  Ids ids;
  EXPECT_FALSE(Unpack({4, 5}, 1, &ids).ok());         // three bits would do
  EXPECT_FALSE(Unpack({3, 5 | 0x10}, 1, &ids).ok());  // a spare bit
  EXPECT_FALSE(Unpack({65}, 1, &ids).ok());
  EXPECT_FALSE(Unpack({}, 1, &ids).ok());
  EXPECT_FALSE(Unpack({3}, 1, &ids).ok());
  // The greatest id has none behind it.
  Bytes beyond = Packed({~uint64_t{0} - 1, ~uint64_t{0}});
  ASSERT_TRUE(Unpack(beyond, 2, &ids).ok());
  beyond[1] |= 1;  // the first is the greatest itself
  EXPECT_FALSE(Unpack(beyond, 2, &ids).ok());
}

TEST(PackedIds, OfAShortListTakeNoMuchMemory) {
  Ids ids;
  EXPECT_FALSE(Unpack(Bytes(3, 0), size_t{1} << 22, &ids).ok());
  EXPECT_EQ(ids.capacity(), 0u);
}

TEST(PackedIds, OfHashesFallEvenlyIntoBuckets) {
  std::vector<size_t> counts(32);
  for (uint64_t id = 0; id < 100000; ++id) ++counts[BucketOf(id, 32)];
  const size_t most = *std::max_element(counts.begin(), counts.end());
  EXPECT_LE(static_cast<double>(most), 1.06 * 100000 / 32);
  EXPECT_EQ(Mix64(1), 0x5692161D100B05E5u);  // splitmix64's finaliser
}

// The block of a table of three rows of 2 bytes.
Bytes MakeBlock(const Ids& ids, const Ids& wanted, size_t row_bytes) {
  Bytes bytes(RowBlockBytes(ids, wanted, row_bytes));
  const MutableByteSpan rows = WriteRowBlock(ids, wanted, std::as_writable_bytes(std::span(bytes)));
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::byte>(i + 1);
  return bytes;
}

TEST(RowBlocks, AreWhatTheDocumentSays) {
  const Bytes block = MakeBlock({3, 4, 9}, {4}, 2);
  const std::vector<std::optional<size_t>> lengths = {block.size(), std::nullopt, 8};
  const RowPayload payload = MakeRowPayload(lengths);
  std::ranges::copy(Span(block), payload.parts[0].begin());
  (void)WriteRowBlock({}, {}, payload.parts[2]);
  EXPECT_EQ(ToBytes(payload.bytes.span()), ReadDocumentBlock("rows"));
}

TEST(RowBlocks, AgreeWithTheReferenceOnEveryDamage) {
  const RowLimits limits{
      .row_bytes = 3, .bucket = 1, .buckets = 4, .rows = 1000, .most_wanted = 50};
  Ids all;
  for (uint64_t id = 0; id < 1000; ++id) {
    if (BucketOf(id, 4) == 1) all.push_back(id);
  }
  const Ids ids(all.begin(), all.begin() + 40);
  const Ids wanted(all.begin() + 7, all.begin() + 19);
  const Bytes block = MakeBlock(ids, wanted, 3);
  const rows_reference::Facts facts{
      .segments = 1, .row_bytes = 3, .bucket = 1, .buckets = 4, .rows = 1000, .most_wanted = 50};
  std::mt19937 random(1);
  size_t taken = 0;
  for (int round = 0; round < 20000; ++round) {
    Bytes bytes = block;
    const int changes = static_cast<int>(random() % 3);
    for (int i = 0; i < changes; ++i) bytes[random() % bytes.size()] ^= 1u << (random() % 8);
    if (random() % 8 == 0) bytes.resize(random() % (bytes.size() + 1));
    RowBlock read;
    const bool is_ok = ReadRowBlock(Span(bytes), limits, &read).ok();
    const auto reference = rows_reference::ReadBlocks(bytes, facts);
    ASSERT_EQ(is_ok, reference.has_value()) << round;
    if (!is_ok) continue;
    ++taken;
    EXPECT_EQ(read.ids, (*reference)[0]->ids);
    EXPECT_EQ(read.wanted, (*reference)[0]->wanted);
    EXPECT_EQ(ToBytes(read.rows), (*reference)[0]->rows);
  }
  EXPECT_GT(taken, 5000u);
}

TEST(RowBlocks, OfAnotherBucketOrBoundAreRefused) {
  const RowLimits limits{.row_bytes = 2, .bucket = 0, .buckets = 2, .rows = 10, .most_wanted = 9};
  Ids zero, one;
  for (uint64_t id = 0; id < 10; ++id) (BucketOf(id, 2) == 0 ? zero : one).push_back(id);
  RowBlock block;
  EXPECT_TRUE(ReadRowBlock(Span(MakeBlock(zero, zero, 2)), limits, &block).ok());
  EXPECT_FALSE(ReadRowBlock(Span(MakeBlock(one, {}, 2)), limits, &block).ok());
  EXPECT_FALSE(ReadRowBlock(Span(MakeBlock({}, one, 2)), limits, &block).ok());
  uint64_t beyond = 10;
  while (BucketOf(beyond, 2) != 0) ++beyond;
  EXPECT_FALSE(ReadRowBlock(Span(MakeBlock({beyond}, {}, 2)), limits, &block).ok());
}

TEST(RowBlocks, MaySayThatNoneAreWantedWhereTheRuleIsMean) {
  Bytes bytes(RowBlockBytes({}, {}, 2));
  (void)WriteRowBlock({}, {}, std::as_writable_bytes(std::span(bytes)), /*wants_none=*/true);
  RowBlock block;
  EXPECT_FALSE(ReadRowBlock(Span(bytes), {.row_bytes = 2, .most_wanted = 9}, &block).ok());
  rows_reference::Facts facts{.row_bytes = 2, .most_wanted = 9};
  EXPECT_FALSE(rows_reference::ReadBlocks(bytes, facts).has_value());
  const RowLimits limits{.row_bytes = 2, .most_wanted = 9, .takes_none = true};
  ASSERT_TRUE(ReadRowBlock(Span(bytes), limits, &block).ok());
  EXPECT_TRUE(block.wants_none);
  EXPECT_THAT(block.wanted, ::testing::IsEmpty());
  facts.is_mean = true;
  const auto reference = rows_reference::ReadBlocks(bytes, facts);
  ASSERT_TRUE(reference.has_value());
  EXPECT_TRUE((*reference)[0]->wants_none);
}

TEST(RowParts, AreRefusedWhereTheyDoNotFit) {
  const std::vector<std::optional<size_t>> lengths = {5, std::nullopt};
  RowPayload payload = MakeRowPayload(lengths);
  std::ranges::fill(payload.parts[0], std::byte{1});
  const Bytes good = ToBytes(payload.bytes.span());
  ASSERT_EQ(good.size(), 16u);
  ASSERT_TRUE(ReadRowParts(Span(good), 2).ok());
  for (const auto& [at, value] : {std::pair<size_t, int>{13, 1}, {0, 9}, {0, 3}, {3, 0xff}}) {
    Bytes bad = good;
    bad[at] = static_cast<uint8_t>(value);
    EXPECT_FALSE(ReadRowParts(Span(bad), 2).ok()) << at;
  }
  EXPECT_FALSE(ReadRowParts(Span(Bytes(8, 0xff)), 2).ok());  // none is there
  EXPECT_FALSE(ReadRowParts(Span(Bytes(7, 0)), 2).ok());
  Bytes longer = good;
  longer.push_back(0);
  EXPECT_FALSE(ReadRowParts(Span(longer), 2).ok());
}

}  // namespace
}  // namespace bdn
