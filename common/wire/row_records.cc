#include "common/wire/row_records.h"

#include "common/base/endian.h"
#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/wire/frame.h"

namespace bdn {
namespace {

constexpr size_t kCursorAt = 0;
constexpr size_t kSinceAt = 8;
constexpr size_t kMostAt = 16;
constexpr size_t kAskReservedAt = 20;

constexpr size_t kNextAt = 0;
constexpr size_t kUpdatesAt = 8;
constexpr size_t kFlagsAt = 16;
constexpr size_t kHeadReservedAt = 20;
constexpr uint32_t kReplaces = 1;

}  // namespace

Buffer EncodeRecordsAsk(const RecordsAsk& ask) {
  Buffer buffer = Buffer::Allocate(kRecordsAskBytes);
  const MutableByteSpan out = buffer.mutable_span();
  StoreLittle(out, kCursorAt, ask.cursor);
  StoreLittle(out, kSinceAt, ask.since);
  StoreLittle(out, kMostAt, ask.most);
  StoreLittle(out, kAskReservedAt, uint32_t{0});
  return buffer;
}

absl::StatusOr<RecordsAsk> DecodeRecordsAsk(ByteSpan payload) {
  if (payload.size() != kRecordsAskBytes) {
    return InvalidArgument("a fetch of records of %d bytes, expected %d", payload.size(),
                           kRecordsAskBytes);
  }
  const RecordsAsk ask{.cursor = LoadLittle<uint64_t>(payload, kCursorAt),
                       .since = LoadLittle<uint64_t>(payload, kSinceAt),
                       .most = LoadLittle<uint32_t>(payload, kMostAt)};
  if (ask.most == 0) return InvalidArgument("a fetch of records wants none");
  if (LoadLittle<uint32_t>(payload, kAskReservedAt) != 0) {
    return InvalidArgument("a fetch of records: a reserved field is not zero");
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
  const auto flags = LoadLittle<uint32_t>(payload, kFlagsAt);
  if (records.head.updates > kMaxStep) {
    return InvalidArgument("%d updates of a table, at most %d", records.head.updates, kMaxStep);
  }
  if ((flags & ~kReplaces) != 0 || LoadLittle<uint32_t>(payload, kHeadReservedAt) != 0) {
    return InvalidArgument("records with unknown flags 0x%x, or a reserved field not zero", flags);
  }
  records.head.replaces = flags != 0;
  RowLimits without_wanted = limits;
  without_wanted.most_wanted = 0;
  without_wanted.takes_none = false;
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
  StoreLittle(out, kHeadReservedAt, uint32_t{0});
  *records = WriteRowBlock(ids, {}, out.subspan(kRecordsHeadBytes));
  return buffer;
}

RowCounters CountersOf(ByteSpan record) {
  const size_t at = record.size() - kRowCounters * sizeof(uint32_t);
  return {.updates = LoadLittle<uint32_t>(record, at),
          .changed = LoadLittle<uint32_t>(record, at + sizeof(uint32_t))};
}

}  // namespace bdn
