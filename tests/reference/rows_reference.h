#ifndef BANDONEON_TESTS_REFERENCE_ROWS_REFERENCE_H_
#define BANDONEON_TESTS_REFERENCE_ROWS_REFERENCE_H_

#include <cstdint>
#include <optional>
#include <vector>

// A second decoder of the payloads of sections 5.12 and 5.13 of proto/wire_format.md, written from
// that document alone: bit by bit, with no code of the project's. It returns nothing for bytes that
// a receiver MUST refuse.
namespace rows_reference {

using Bytes = std::vector<uint8_t>;

// The facts of a key that its declaration gives.
struct Facts {
  uint64_t segments = 1;
  uint64_t row_bytes = 4;
  uint64_t bucket = 0;
  uint64_t buckets = 1;
  uint64_t rows = 0;  // of every table; 0: any id
  uint64_t most_wanted = 0;
  bool is_mean = false;  // the rule of the tables
};

struct Block {
  std::vector<uint64_t> ids, wanted;
  bool wants_none = false;
  Bytes rows;
  bool operator==(const Block&) const = default;
};
using Blocks = std::vector<std::optional<Block>>;  // by segment

// Reads the payload of a push, an init or a fetch.
std::optional<Blocks> ReadBlocks(const Bytes& payload, const Facts& facts);

// Section 5.13: a fetch of records, and a value or an init of them.
struct Ask {
  uint64_t cursor = 0, since = 0, most = 0, list = 0;
};
std::optional<Ask> ReadAsk(const Bytes& payload);
struct Records {
  uint64_t next = 0, updates = 0;
  bool replaces = false;
  uint64_t list = 0, complete_since = 0;
  Block block;
};
std::optional<Records> ReadRecords(const Bytes& payload, const Facts& facts);

}  // namespace rows_reference

#endif  // BANDONEON_TESTS_REFERENCE_ROWS_REFERENCE_H_
