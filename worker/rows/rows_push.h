#ifndef BANDONEON_WORKER_ROWS_ROWS_PUSH_H_
#define BANDONEON_WORKER_ROWS_ROWS_PUSH_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/wire/row_records.h"

namespace bdn {

// The rows of one table in a push. Arrays are borrowed.
struct TableRows {
  uint32_t table = 0;  // its id, from Declare
  std::span<const uint64_t> ids;
  const float* gradients = nullptr;  // float32[ids.size()][width]; may hold an id more than once
  // The rows that come with the answer, as the step has left them.
  std::span<const uint64_t> wanted;
  float* out = nullptr;  // float32[wanted.size()][width]; unspecified until the ticket is done
};

// The means of a step of one table whose rule is mean, ids rising.
struct SummedRows {
  std::vector<uint64_t> ids;
  std::vector<float> rows;  // float32[ids.size()][width]
};

// A step of some tables. All tables that share keys with these take part; those that are not named
// have no rows in it. Gradients are read before the call returns.
struct RowsPush {
  std::vector<TableRows> tables;
  float weight = 1.0f;      // of this worker's gradients in the mean
  float loss_scale = 1.0f;  // the gradients are divided by it
  float learning_rate = 0.0f;
  uint32_t program_steps = 0;  // as of PushRequest
  int32_t priority = 0;        // as of PushRequest
};

// The layout of a table's records. A record is float32[width], float32[moment_floats] and the row's
// RowCounters (common/wire/row_records.h).
struct TableLayout {
  uint32_t width = 0;
  uint32_t moment_floats = 0;
  uint32_t buckets = 0;
  bool is_limited = false;  // the table has other lists than its rows
};

// A piece of the records of one list of a bucket of a table. Memory is borrowed until the ticket is
// done.
struct RecordsScan {
  uint32_t table = 0;
  uint32_t bucket = 0;
  uint64_t cursor = 0;  // 0, or `next` of the piece before
  uint64_t since = 0;   // records that changed after so many updates of the table
  size_t room = 0;      // for so many records, 1 or more
  RowList list = RowList::kRows;
  uint64_t* ids = nullptr;
  std::byte* records = nullptr;
  // What came: the cursor of the next piece, 0 at the end; the number of records, which may be 0
  // before the end, too; the updates of the table; and those since which all ids that were removed
  // are told, of that list.
  uint64_t* next = nullptr;
  uint64_t* count = nullptr;
  uint64_t* updates = nullptr;
  uint64_t* complete_since = nullptr;
};

// Records of a list of one table, each id once. An id that was set in one list is in no other.
struct RecordsSet {
  uint32_t table = 0;
  std::span<const uint64_t> ids;
  const std::byte* records = nullptr;
  uint64_t updates = 0;   // that the table counts from then on
  bool replaces = false;  // all that the servers hold of the table is forgotten first
  RowList list = RowList::kRows;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_ROWS_ROWS_PUSH_H_
