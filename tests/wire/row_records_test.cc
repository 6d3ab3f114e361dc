#include "common/wire/row_records.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "common/base/ids.h"
#include "gmock/gmock.h"
#include "tests/reference/rows_reference.h"
#include "tests/wire/document_block.h"
#include "tests/wire/wire_bytes.h"

namespace bdn {
namespace {

constexpr size_t kBytes = RecordBytes(/*width=*/2, /*moment_floats=*/1);

Bytes MakeBytes(const RecordsHead& head, const std::vector<uint64_t>& ids) {
  MutableByteSpan records;
  Buffer payload = MakeRecords(head, ids, ListedBytes(head.list, kBytes), &records);
  for (size_t i = 0; i < records.size(); ++i) records[i] = static_cast<std::byte>(i + 1);
  return ToBytes(payload.span());
}

TEST(RowRecords, AreWhatTheDocumentSays) {
  EXPECT_EQ(MakeBytes({.next = 64, .updates = 7}, {3, 9}), ReadDocumentBlock("records"));
}

TEST(RowRecords, OfOtherListsAreCountersAloneAsTheDocumentSays) {
  MutableByteSpan records;
  const Buffer payload =
      MakeRecords({.updates = 7, .list = RowList::kRemoved, .complete_since = 2},
                  std::vector<uint64_t>{3}, ListedBytes(RowList::kRemoved, kBytes), &records);
  const RowCounters counters{.updates = 1, .changed = 6};
  std::memcpy(records.data(), &counters, sizeof(counters));
  EXPECT_EQ(ToBytes(payload.span()), ReadDocumentBlock("removed"));
}

TEST(RowRecords, EndInTheirCounters) {
  const Bytes record = {1, 2, 3, 4, 5, 0, 0, 0, 6, 1, 0, 0};
  const RowCounters counters = CountersOf(Span(record));
  EXPECT_EQ(counters.updates, 5u);
  EXPECT_EQ(counters.changed, 262u);
}

TEST(RowRecords, AgreeWithTheReferenceOnEveryDamage) {
  const RowLimits limits{.row_bytes = kBytes, .bucket = 0, .buckets = 1, .rows = 1000};
  const rows_reference::Facts facts{
      .segments = 1, .row_bytes = kBytes, .bucket = 0, .buckets = 1, .rows = 1000};
  const Bytes good = MakeBytes({.next = 4096, .updates = 99, .replaces = true}, {1, 5, 6, 999});
  const Bytes removed =
      MakeBytes({.updates = 99, .list = RowList::kRemoved, .complete_since = 12}, {1, 5, 6, 999});
  std::mt19937 random(1);
  size_t taken = 0;
  for (int round = 0; round < 20000; ++round) {
    Bytes bytes = round % 2 == 0 ? good : removed;
    const int changes = static_cast<int>(random() % 3);
    for (int i = 0; i < changes; ++i) bytes[random() % bytes.size()] ^= 1u << (random() % 8);
    if (random() % 8 == 0) bytes.resize(random() % (bytes.size() + 1));
    const auto records = DecodeRecords(Span(bytes), limits);
    const auto reference = rows_reference::ReadRecords(bytes, facts);
    ASSERT_EQ(records.ok(), reference.has_value()) << round;
    if (!records.ok()) continue;
    ++taken;
    EXPECT_EQ(records->head.next, reference->next);
    EXPECT_EQ(records->head.updates, reference->updates);
    EXPECT_EQ(records->head.replaces, reference->replaces);
    EXPECT_EQ(static_cast<uint64_t>(records->head.list), reference->list);
    EXPECT_EQ(records->head.complete_since, reference->complete_since);
    EXPECT_EQ(records->block.ids, reference->block.ids);
    EXPECT_EQ(ToBytes(records->block.rows), reference->block.rows);
  }
  EXPECT_GT(taken, 5000u);
  EXPECT_FALSE(DecodeRecords(Span(MakeBytes({.updates = kMaxStep + 1}, {})), limits).ok());
}

TEST(RecordsAsks, AgreeWithTheReferenceOnEveryDamage) {
  const Bytes good = ToBytes(
      EncodeRecordsAsk({.cursor = 64, .since = 3, .most = 1, .list = RowList::kCandidates}).span());
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    Bytes bytes = good;
    bytes[bit / 8] ^= 1u << (bit % 8);
    const auto ask = DecodeRecordsAsk(Span(bytes));
    const auto reference = rows_reference::ReadAsk(bytes);
    ASSERT_EQ(ask.ok(), reference.has_value()) << bit;
    if (!ask.ok()) continue;
    EXPECT_EQ(ask->cursor, reference->cursor);
    EXPECT_EQ(ask->since, reference->since);
    EXPECT_EQ(ask->most, reference->most);
    EXPECT_EQ(static_cast<uint64_t>(ask->list), reference->list);
  }
  for (const size_t size : {0, 23, 25}) {
    EXPECT_FALSE(DecodeRecordsAsk(Span(Bytes(size, 1))).ok());
  }
}

}  // namespace
}  // namespace bdn
