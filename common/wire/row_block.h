#ifndef BANDONEON_COMMON_WIRE_ROW_BLOCK_H_
#define BANDONEON_COMMON_WIRE_ROW_BLOCK_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/buffer.h"
#include "common/base/bytes.h"

// The payloads of frames about keys of rows: push, reply, init, fetch and value
// (proto/wire_format.md, section 5.12). The rows themselves are opaque here: each takes the same
// number of bytes.

namespace bdn {

// The most ids of one list in a frame.
inline constexpr uint32_t kMostRows = uint32_t{1} << 22;

// The parts of a payload, one for each table of the key; nothing where the table is left out.
using RowParts = std::vector<std::optional<ByteSpan>>;
// Reads the table of lengths, if there are several segments. InvalidArgument: lengths that the
// payload does not have, padding that is not zero, or no part at all. REQUIRES: segments >= 1.
absl::StatusOr<RowParts> ReadRowParts(ByteSpan payload, size_t segments);

// A payload whose parts are still to be written, each in its place.
struct RowPayload {
  Buffer bytes;
  std::vector<MutableByteSpan> parts;  // by segment; empty where there is none
};
// Makes a payload with parts of these lengths; nothing: the table is left out. Where all are left
// out, the payload is empty. Padding is zero; the parts are not set.
RowPayload MakeRowPayload(std::span<const std::optional<size_t>> lengths);
// Returns the bytes of such a payload.
size_t RowPayloadBytes(std::span<const std::optional<size_t>> lengths);

// The limits of what a block may hold, all of which follow from the declaration.
struct RowLimits {
  size_t row_bytes = 0;  // of each row in the block
  uint32_t bucket = 0;
  uint32_t buckets = 1;
  uint64_t rows = 0;         // ids are below; 0: any
  uint64_t most_wanted = 0;  // ids that may be wanted
  bool takes_none = false;   // the block may say that none are wanted, of rows that come otherwise
};

// The part of a push, init or fetch that is about one table.
struct RowBlock {
  std::vector<uint64_t> ids;     // of `rows`, rising
  std::vector<uint64_t> wanted;  // rising
  bool wants_none = false;       // said so, where takes_none
  ByteSpan rows;                 // ids.size() times RowLimits::row_bytes
};
// Reads a block. InvalidArgument: too many ids, ids that are not in their one encoding, of another
// bucket or not below the bound, or rows of another length.
absl::Status ReadRowBlock(ByteSpan part, const RowLimits& limits, RowBlock* block);
size_t RowBlockBytes(std::span<const uint64_t> ids, std::span<const uint64_t> wanted,
                     size_t row_bytes);
// Writes numbers and ids, and returns the place for the rows. REQUIRES: part.size() is
// RowBlockBytes; where wants_none, `wanted` is empty.
MutableByteSpan WriteRowBlock(std::span<const uint64_t> ids, std::span<const uint64_t> wanted,
                              MutableByteSpan part, bool wants_none = false);

// The part of a reply or value that is about one table: the rows that were asked for, in order.
// Returns the rows. InvalidArgument: there are not `count` of them.
absl::StatusOr<ByteSpan> ReadRowAnswer(ByteSpan part, size_t count, size_t row_bytes);
inline size_t RowAnswerBytes(size_t count, size_t row_bytes) {
  return sizeof(uint32_t) + count * row_bytes;
}
// Writes the number of rows, and returns the place for them. REQUIRES: part.size() is
// RowAnswerBytes.
MutableByteSpan WriteRowAnswer(size_t count, MutableByteSpan part);

}  // namespace bdn

#endif  // BANDONEON_COMMON_WIRE_ROW_BLOCK_H_
