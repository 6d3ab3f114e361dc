#include "common/wire/row_records.h"

#include <algorithm>

#include "common/base/endian.h"
#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/wire/frame.h"

namespace bdn {
namespace {

constexpr size_t kCursorAt = 0;
constexpr size_t kSinceAt = 8;
constexpr size_t kMostAt = 16;
constexpr size_t kAskListAt = 20;

constexpr size_t kNextAt = 0;
constexpr size_t kUpdatesAt = 8;
constexpr size_t kFlagsAt = 16;
constexpr size_t kListAt = 20;
constexpr size_t kCompleteAt = 24;
constexpr uint32_t kReplaces = 1;

}  // namespace

Buffer EncodeRecordsAsk(const RecordsAsk& ask) {
  Buffer buffer = Buffer::Allocate(kRecordsAskBytes);
  const MutableByteSpan out = buffer.mutable_span();
  StoreLittle(out, kCursorAt, ask.cursor);
  StoreLittle(out, kSinceAt, ask.since);
  StoreLittle(out, kMostAt, ask.most);
  StoreLittle(out, kAskListAt, static_cast<uint32_t>(ask.list));
  return buffer;
}

absl::StatusOr<RecordsAsk> DecodeRecordsAsk(ByteSpan payload) {
  if (payload.size() != kRecordsAskBytes) {
    return InvalidArgument("a fetch of records of %d bytes, expected %d", payload.size(),
                           kRecordsAskBytes);
  }
  const RecordsAsk ask{.cursor = LoadLittle<uint64_t>(payload, kCursorAt),
                       .since = LoadLittle<uint64_t>(payload, kSinceAt),
                       .most = LoadLittle<uint32_t>(payload, kMostAt),
                       .list = static_cast<RowList>(LoadLittle<uint32_t>(payload, kAskListAt))};
  if (ask.most == 0) return InvalidArgument("a fetch of records wants none");
  if (static_cast<uint32_t>(ask.list) >= kRowLists) {
    return InvalidArgument("a fetch of records of list %d, of %d", ask.list, kRowLists);
  }
  return ask;
}

absl::StatusOr<Records> DecodeRecords(ByteSpan payload, const RowLimits& limits) {
  if (payload.size() < kRecordsHeadBytes) {
    return InvalidArgument("records of %d bytes, which lack their head", payload.size());
  }
  Records records;
  records.head.next = LoadLittle<uint64_t>(payload, kNextAt);
  records.head.updates = LoadLittle<uint64_t>(payload, kUpdatesAt);
  records.head.complete_since = LoadLittle<uint64_t>(payload, kCompleteAt);
  const auto flags = LoadLittle<uint32_t>(payload, kFlagsAt);
  const auto list = LoadLittle<uint32_t>(payload, kListAt);
  if (std::max(records.head.updates, records.head.complete_since) > kMaxStep) {
    return InvalidArgument("%d updates of a table, or ids since %d, at most %d",
                           records.head.updates, records.head.complete_since, kMaxStep);
  }
  if ((flags & ~kReplaces) != 0 || list >= kRowLists) {
    return InvalidArgument("records with unknown flags 0x%x, or of list %d", flags, list);
  }
  records.head.replaces = flags != 0;
  records.head.list = static_cast<RowList>(list);
  if (records.head.list != RowList::kRemoved && records.head.complete_since != 0) {
    return InvalidArgument("records of list %d, complete since %d", list,
                           records.head.complete_since);
  }
  RowLimits without_wanted = limits;
  without_wanted.most_wanted = 0;
  without_wanted.takes_none = false;
  without_wanted.row_bytes = ListedBytes(records.head.list, limits.row_bytes);
  BDN_RETURN_IF_ERROR(
      ReadRowBlock(payload.subspan(kRecordsHeadBytes), without_wanted, &records.block));
  return records;
}

Buffer MakeRecords(const RecordsHead& head, std::span<const uint64_t> ids, size_t record_bytes,
                   MutableByteSpan* records) {
  Buffer buffer = Buffer::Allocate(kRecordsHeadBytes + RowBlockBytes(ids, {}, record_bytes));
  const MutableByteSpan out = buffer.mutable_span();
  StoreLittle(out, kNextAt, head.next);
  StoreLittle(out, kUpdatesAt, head.updates);
  StoreLittle(out, kFlagsAt, head.replaces ? kReplaces : 0);
  StoreLittle(out, kListAt, static_cast<uint32_t>(head.list));
  StoreLittle(out, kCompleteAt, head.complete_since);
  *records = WriteRowBlock(ids, {}, out.subspan(kRecordsHeadBytes));
  return buffer;
}

RowCounters CountersOf(ByteSpan record) {
  const size_t at = record.size() - kRowCounters * sizeof(uint32_t);
  return {.updates = LoadLittle<uint32_t>(record, at),
          .changed = LoadLittle<uint32_t>(record, at + sizeof(uint32_t))};
}

}  // namespace bdn
