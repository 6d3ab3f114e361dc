#ifndef BANDONEON_COMMON_WIRE_PACKED_IDS_H_
#define BANDONEON_COMMON_WIRE_PACKED_IDS_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/bytes.h"

// Ids of rows, and the bytes in which a list of them travels (proto/wire_format.md, section 5.12).

namespace bdn {

// Returns a number as different from `x` as a random one: splitmix64's finaliser.
constexpr uint64_t Mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Returns the bucket of a row. REQUIRES: `buckets` is a power of two.
constexpr uint32_t BucketOf(uint64_t id, uint32_t buckets) {
  if (buckets == 1) return 0;
  return static_cast<uint32_t>(Mix64(id) >> (64 - std::countr_zero(buckets)));
}

// Returns the bytes that these ids take. REQUIRES: they rise strictly.
size_t PackedIdsBytes(std::span<const uint64_t> ids);
// Writes them to the front of `out`, and returns the bytes that they take. REQUIRES: as
// PackedIdsBytes, which is at most out.size().
size_t PackIds(std::span<const uint64_t> ids, MutableByteSpan out);

// Reads `count` ids from the front of `in` into `ids`, and returns the bytes that they took.
// InvalidArgument: the list ends early, does not rise below 2^64, or is not in its one encoding;
// what `ids` holds is unspecified then. No more memory is taken than 1024 times the bytes of `in`.
absl::StatusOr<size_t> UnpackIds(ByteSpan in, size_t count, std::vector<uint64_t>* ids);

}  // namespace bdn

#endif  // BANDONEON_COMMON_WIRE_PACKED_IDS_H_
