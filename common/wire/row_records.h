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
// a row, or of an id of another list of the table.

namespace bdn {

// The lists of a table. The values are on the wire: never renumber.
enum class RowList : uint32_t {
  kRows = 0,
  kCandidates = 1,  // ids that were pushed and are not admitted yet
  kRemoved = 2,     // ids that were removed from the others, and are no rows since
};
inline constexpr uint32_t kRowLists = 3;

// The counters at the end of a record, behind its values and moments. Of the other lists a record
// is nothing else.
struct RowCounters {
  // A row's updates; a candidate's, that had its gradient; and for an id that was removed 1 where
  // it was a row, and 0 where it was never more than a candidate.
  uint32_t updates = 0;
  // The table's updates when the row was changed last, the candidate pushed last, or the id
  // removed, that one included.
  uint32_t changed = 0;
};
inline constexpr size_t kRowCounters = 2;  // numbers of 4 bytes
// Returns the bytes of a record.
inline constexpr size_t RecordBytes(size_t width, size_t moment_floats) {
  return (width + moment_floats + kRowCounters) * sizeof(float);
}
// Returns the bytes of a record of a list. `row_bytes` is RecordBytes of the table.
inline constexpr size_t ListedBytes(RowList list, size_t row_bytes) {
  return list == RowList::kRows ? row_bytes : RecordBytes(0, 0);
}

// A fetch of records.
struct RecordsAsk {
  uint64_t cursor = 0;  // 0, or where the value before this one ended
  uint64_t since = 0;   // records changed after so many updates of the table
  uint32_t most = 1;    // so many records are wanted, at most
  RowList list = RowList::kRows;
};
Buffer EncodeRecordsAsk(const RecordsAsk& ask);
// Decodes it. InvalidArgument: another length, no record wanted, or a list that is not known.
absl::StatusOr<RecordsAsk> DecodeRecordsAsk(ByteSpan payload);

// A value or an init of records: what is said of the table, and then a block of rows.
struct RecordsHead {
  uint64_t next = 0;     // value: where the next fetch goes on, 0 at the end; init: 0
  uint64_t updates = 0;  // of the table
  // Init: all that the table holds in the key is forgotten first.
  bool replaces = false;
  RowList list = RowList::kRows;
  // Value of kRemoved: all ids that were removed after so many updates are told; else 0.
  uint64_t complete_since = 0;
};
inline constexpr size_t kRecordsHeadBytes = 32;
struct Records {
  RecordsHead head;
  RowBlock block;  // whose rows are records, and which wants nothing
};
// Decodes them. InvalidArgument: as ReadRowBlock; flags that are not known, or numbers too large.
// `limits.row_bytes` is RecordBytes of the table.
absl::StatusOr<Records> DecodeRecords(ByteSpan payload, const RowLimits& limits);
// Makes a payload with room for the records of these ids, which `records` is set to.
Buffer MakeRecords(const RecordsHead& head, std::span<const uint64_t> ids, size_t record_bytes,
                   MutableByteSpan* records);

// Returns the counters of a record, which is that of RecordBytes.
RowCounters CountersOf(ByteSpan record);

}  // namespace bdn

#endif  // BANDONEON_COMMON_WIRE_ROW_RECORDS_H_
