#ifndef BANDONEON_WORKER_ROWS_ROW_REQUESTS_H_
#define BANDONEON_WORKER_ROWS_ROW_REQUESTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/wire/frame.h"
#include "common/wire/row_records.h"
#include "link/row_link.h"
#include "worker/rows/row_set.h"
#include "worker/rows/rows_push.h"

// The frames of a worker about keys of rows: made from the caller's arrays, and their answers read
// into them. Pure, without thread, lock or clock.

namespace bdn {

// One table of a group in a call.
struct TableInCall {
  TableRows rows;  // its spans are those of the caller, which end with the call
  RowSet ids;
  RowSet wanted;
};

// Checks the arrays of one table. InvalidArgument names table, id and position.
absl::Status CheckTableRows(const TableRows& rows, const RowLink::Table& table, size_t width);

// Returns whether a push has nothing of a table: no ids, not even an empty list, and wants none.
bool IsLeftOut(const TableInCall* table);

// The tables of one group of keys in a call, by segment. Null where the call does not name the
// table.
using TablesInCall = std::vector<std::unique_ptr<TableInCall>>;
// Sorts the ids of a table into buckets.
std::unique_ptr<TableInCall> SplitTable(const TableRows& rows, uint32_t buckets);
// InvalidArgument: a frame of one bucket would be longer than kMaxRowsPayload; it says how many
// rows there are, and what to set.
absl::Status CheckRowFrames(const RowLink& link, const TablesInCall& tables);

// The facts of a push that its draws depend on.
struct RowDraws {
  uint64_t run_seed = 0;
  Rank rank = 0;
};
// Makes the payload of a push to one bucket, which is empty where all tables are left out. Nothing:
// a gradient of the bucket is not finite once it is scaled. `link` is that of any bucket of the
// group.
std::optional<Buffer> EncodeRowPush(const RowLink& link, uint32_t bucket,
                                    const TablesInCall& tables, float scale, Step step,
                                    const RowDraws& draws);
// Makes the payload of a fetch of what the tables want of one bucket; empty where they want
// nothing.
Buffer EncodeRowFetch(uint32_t bucket, const TablesInCall& tables);
// Makes the payload of an init of rows [first, first + count) of a bucket of one table, whose
// values are its `gradients`.
Buffer EncodeRowInit(const RowLink& link, uint32_t bucket, size_t segment, const TableInCall& table,
                     size_t first, size_t count);
// Makes the payload of an init of records [first, first + count) of a bucket of a table, whose
// records are `records`, each of `record_bytes`.
Buffer EncodeRecordsInit(uint32_t bucket, const TableInCall& table, const std::byte* records,
                         size_t record_bytes, const RecordsHead& head, size_t first, size_t count);
// Reads a value of records into the memory of the scan. Internal: it is not what was asked for.
absl::Status DecodeRecordsValue(const RowLink& link, size_t segment, const RecordsScan& scan,
                                ByteSpan payload);
// The rows of one bucket of tables whose rule is mean, by segment: of those of which no rows in
// particular were wanted, where there are any.
using BucketMeans = std::vector<std::optional<SummedRows>>;
// Decodes the reply of a step of such tables; what was wanted goes to the callers' arrays.
// Internal: as DecodeRowAnswer.
absl::StatusOr<BucketMeans> DecodeMeans(const RowLink& link, uint32_t bucket,
                                        const TablesInCall& tables, ByteSpan payload);
// Sets all elements of the wanted rows of a bucket.
void FillWanted(const RowLink& link, uint32_t bucket, const TablesInCall& tables, float value);
// Returns the bytes of a record of a table.
size_t RecordBytesOf(const RowLink& link);
// Decodes the rows of a reply or value into the callers' arrays. Internal, after which some rows
// may have been written: the server's answer is not what was asked for.
absl::Status DecodeRowAnswer(const RowLink& link, uint32_t bucket, const TablesInCall& tables,
                             ByteSpan payload);

}  // namespace bdn

#endif  // BANDONEON_WORKER_ROWS_ROW_REQUESTS_H_
