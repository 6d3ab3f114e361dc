#ifndef BANDONEON_COMMON_WIRE_ROW_RECORDS_H_
#define BANDONEON_COMMON_WIRE_ROW_RECORDS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/buffer.h"
#include "common/base/bytes.h"
#include "common/wire/row_block.h"

// The payloads of frames about the records of one table of a key of rows: fetch, value and init of
// StatePart::kRecords (proto/wire_format.md, section 5.13). A record is all that a server holds of
// a row.

namespace bdn {

// The counters at the end of a record, behind its values and moments.
struct RowCounters {
  uint32_t updates = 0;  // of the row
  uint32_t changed = 0;  // the table's updates when the row was changed last, that one included
};
inline constexpr size_t kRowCounters = 2;  // numbers of 4 bytes
// Returns the bytes of a record.
inline constexpr size_t RecordBytes(size_t width, size_t moment_floats) {
  return (width + moment_floats + kRowCounters) * sizeof(float);
}

// A fetch of records.
struct RecordsAsk {
  uint64_t cursor = 0;  // 0, or where the value before this one ended
  uint64_t since = 0;   // records changed after so many updates of the table
  uint32_t most = 1;    // so many records are wanted, at most
};
Buffer EncodeRecordsAsk(const RecordsAsk& ask);
// Decodes it. InvalidArgument: another length, no record wanted, or bytes that are not zero.
absl::StatusOr<RecordsAsk> DecodeRecordsAsk(ByteSpan payload);

// A value or an init of records: what is said of the table, and then a block of rows.
struct RecordsHead {
  uint64_t next = 0;      // value: where the next fetch goes on, 0 at the end; init: 0
  uint64_t updates = 0;   // of the table
  bool replaces = false;  // init: the rows that the table holds in the key are forgotten first
};
inline constexpr size_t kRecordsHeadBytes = 24;
struct Records {
  RecordsHead head;
  RowBlock block;  // whose rows are records, and which wants nothing
};
// Decodes them. InvalidArgument: as ReadRowBlock; flags that are not known, or numbers too large.
// `limits.row_bytes` is RecordBytes.
absl::StatusOr<Records> DecodeRecords(ByteSpan payload, const RowLimits& limits);
// Makes a payload with room for the records of these ids, which `records` is set to.
Buffer MakeRecords(const RecordsHead& head, std::span<const uint64_t> ids, size_t record_bytes,
                   MutableByteSpan* records);

// Returns the counters of a record, which is that of RecordBytes.
RowCounters CountersOf(ByteSpan record);

}  // namespace bdn

#endif  // BANDONEON_COMMON_WIRE_ROW_RECORDS_H_
