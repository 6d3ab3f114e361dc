#include "tests/reference/rows_reference.h"

#include <cstddef>

namespace rows_reference {
namespace {

uint64_t Little(const Bytes& bytes, size_t at, int count) {
  uint64_t value = 0;
  for (int i = count - 1; i >= 0; --i) value = value * 256 + bytes[at + static_cast<size_t>(i)];
  return value;
}

bool BitOf(const Bytes& bytes, size_t first_byte, size_t bit) {
  return (bytes[first_byte + bit / 8] >> (bit % 8) & 1) != 0;
}

int BitLength(uint64_t value) {
  int length = 0;
  for (; value != 0; value /= 2) ++length;
  return length;
}

uint64_t Mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9u;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBu;
  x ^= x >> 31;
  return x;
}

// The bucket is the number of the part of all 64-bit numbers, in equal parts, in which mix is.
uint64_t BucketOf(uint64_t id, uint64_t buckets) {
  if (buckets == 1) return 0;
  uint64_t part = UINT64_MAX / buckets + 1;
  return Mix(id) / part;
}

// Reads ids from position *at on, which then is behind them.
bool ReadIds(const Bytes& in, size_t* at, uint64_t count, const Facts& facts,
             std::vector<uint64_t>* ids) {
  bool has_last = false;
  uint64_t last = 0;
  for (uint64_t done = 0; done < count;) {
    const uint64_t in_block = count - done < 128 ? count - done : 128;
    if (*at >= in.size()) return false;
    const int width = in[(*at)++];
    if (width > 64) return false;
    const size_t bytes = (in_block * static_cast<uint64_t>(width) + 7) / 8;
    if (in.size() - *at < bytes) return false;
    int longest = 0;
    size_t bit = 0;
    for (uint64_t i = 0; i < in_block; ++i) {
      uint64_t gap = 0;
      for (int b = 0; b < width; ++b, ++bit) {
        if (BitOf(in, *at, bit)) gap |= uint64_t{1} << b;
      }
      if (BitLength(gap) > longest) longest = BitLength(gap);
      if (!has_last) {
        last = gap;
      } else {
        if (gap > UINT64_MAX - last || gap + last == UINT64_MAX) return false;
        last = last + 1 + gap;
      }
      has_last = true;
      ids->push_back(last);
      if (facts.rows != 0 && last >= facts.rows) return false;
      if (BucketOf(last, facts.buckets) != facts.bucket) return false;
    }
    for (; bit < bytes * 8; ++bit) {
      if (BitOf(in, *at, bit)) return false;
    }
    if (longest != width) return false;
    *at += bytes;
    done += in_block;
  }
  return true;
}

std::optional<Block> ReadBlock(const Bytes& in, const Facts& facts) {
  if (in.size() < 8) return std::nullopt;
  const uint64_t m = Little(in, 0, 4);
  uint64_t q = Little(in, 4, 4);
  const bool wants_none = facts.is_mean && q == 0xFFFFFFFFu;
  if (wants_none) q = 0;
  const uint64_t most = 1u << 22;
  if (m > most || q > most || q > facts.most_wanted) return std::nullopt;
  if (m * facts.row_bytes > in.size() - 8) return std::nullopt;
  Block block;
  block.wants_none = wants_none;
  size_t at = 8;
  // A block of 128 ids has a byte at least.
  if ((m + 127) / 128 > in.size() - at || !ReadIds(in, &at, m, facts, &block.ids)) {
    return std::nullopt;
  }
  if ((q + 127) / 128 > in.size() - at || !ReadIds(in, &at, q, facts, &block.wanted)) {
    return std::nullopt;
  }
  if (in.size() - at != m * facts.row_bytes) return std::nullopt;
  block.rows.assign(in.begin() + static_cast<ptrdiff_t>(at), in.end());
  return block;
}

}  // namespace

std::optional<Blocks> ReadBlocks(const Bytes& payload, const Facts& facts) {
  Blocks blocks(facts.segments);
  if (facts.segments == 1) {
    blocks[0] = ReadBlock(payload, facts);
    return blocks[0].has_value() ? std::optional(blocks) : std::nullopt;
  }
  size_t at = 4 * facts.segments;
  if (payload.size() < at) return std::nullopt;
  bool has_any = false;
  for (uint64_t i = 0; i < facts.segments; ++i) {
    const uint64_t length = Little(payload, 4 * i, 4);
    if (length == 0xFFFFFFFFu) continue;
    uint64_t padded = length;
    while (padded % 4 != 0) ++padded;
    if (padded > payload.size() - at) return std::nullopt;
    const Bytes part(payload.begin() + static_cast<ptrdiff_t>(at),
                     payload.begin() + static_cast<ptrdiff_t>(at + length));
    for (uint64_t j = length; j < padded; ++j) {
      if (payload[at + j] != 0) return std::nullopt;
    }
    blocks[i] = ReadBlock(part, facts);
    if (!blocks[i].has_value()) return std::nullopt;
    has_any = true;
    at += padded;
  }
  if (!has_any || at != payload.size()) return std::nullopt;
  return blocks;
}

std::optional<Ask> ReadAsk(const Bytes& payload) {
  if (payload.size() != 24) return std::nullopt;
  const Ask ask{Little(payload, 0, 8), Little(payload, 8, 8), Little(payload, 16, 4),
                Little(payload, 20, 4)};
  if (ask.most == 0 || ask.list > 2) return std::nullopt;
  return ask;
}

std::optional<Records> ReadRecords(const Bytes& payload, const Facts& facts) {
  if (payload.size() < 32) return std::nullopt;
  Records records;
  records.next = Little(payload, 0, 8);
  records.updates = Little(payload, 8, 8);
  if (records.updates > uint64_t{1} << 62) return std::nullopt;
  const uint64_t flags = Little(payload, 16, 4);
  records.list = Little(payload, 20, 4);
  records.complete_since = Little(payload, 24, 8);
  if (flags > 1 || records.list > 2) return std::nullopt;
  const uint64_t most_since = records.list == 2 ? uint64_t{1} << 62 : 0;
  if (records.complete_since > most_since) return std::nullopt;
  records.replaces = flags == 1;
  Facts without_wanted = facts;
  without_wanted.most_wanted = 0;
  without_wanted.is_mean = false;
  if (records.list != 0) without_wanted.row_bytes = 8;
  const auto block = ReadBlock(Bytes(payload.begin() + 32, payload.end()), without_wanted);
  if (!block.has_value()) return std::nullopt;
  records.block = *block;
  return records;
}

}  // namespace rows_reference
