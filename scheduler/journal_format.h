#ifndef BANDONEON_SCHEDULER_JOURNAL_FORMAT_H_
#define BANDONEON_SCHEDULER_JOURNAL_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/bytes.h"

// The bytes of a generation, which is one file of a scheduler's journal. All numbers are
// little-endian.
//
//   header   8 bytes "bdn-jrnl"; u32 version, 1; u32 user; u64 predecessor;
//            u32 length of the job's id; that id; u32 CRC-32C of all the bytes before it
//   record   u32 length of the payload; u32 CRC-32C of type and payload; u8 type; payload
//
// Types 1 to 127 are the caller's. Type 0, without a payload, is the mark: the records before it
// are all that the generation takes over from its predecessor, and one without a mark does not
// count. The highest bit of a type says that the record is the first of an append. All records of
// one append become durable at once, and no append begins before the one in front of it is durable.
// So after a crash the bytes of the last append may be lost in part, its middle before its end
// where the disk wrote in another order, but nothing in front of them; and a damaged record before
// the first one of a later append is damage that no crash explains.
//
// Pure functions of bytes, which any thread may call.

namespace bdn {

// One entry of a journal. The caller defines the types.
struct JournalRecord {
  uint8_t type = 1;  // 1 to kMostRecordType
  std::string payload;
  bool operator==(const JournalRecord&) const = default;
};

inline constexpr uint8_t kMostRecordType = 127;
inline constexpr size_t kMostRecordBytes = size_t{16} << 20;     // of one payload
inline constexpr size_t kMostGenerationBytes = size_t{1} << 30;  // a longer file is not read
inline constexpr size_t kMostJobIdBytes = 1024;

// The head of a generation.
struct JournalHeader {
  uint32_t user = 0;  // the effective user id of the scheduler that made the file
  std::string job;    // at most kMostJobIdBytes
  // The complete generation whose records this one takes over; 0: there was none.
  uint64_t predecessor = 0;
};

std::string EncodeJournalHeader(const JournalHeader& header);
// Encodes the records as one append. REQUIRES: valid types, and payloads within the limit.
std::string EncodeAppend(std::span<const JournalRecord> records);
// Encodes the mark, which is an append of its own.
std::string EncodeMark();

// The content of one generation.
struct JournalGeneration {
  uint64_t predecessor = 0;
  bool is_complete = false;            // the mark is there
  std::vector<JournalRecord> records;  // in the order in which they were appended
};

// Reads a generation up to its last whole record. A file that a crash has cut within its header, or
// left as zeros, is a generation that is not complete; bytes behind the header that are no whole
// record are the remainder of the last append.
//
// DataLoss: a record or the header is damaged, and no crash explains that. InvalidArgument: the
// file is of another version, job or user than `expected`, whose predecessor does not matter. Each
// error says what to do; the caller adds the name of the file.
absl::StatusOr<JournalGeneration> ReadGeneration(ByteSpan file, const JournalHeader& expected);

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_JOURNAL_FORMAT_H_
