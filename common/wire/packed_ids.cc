#include "common/wire/packed_ids.h"

#include <algorithm>

#include "common/base/endian.h"
#include "common/base/status.h"

namespace bdn {
namespace {

constexpr size_t kBlock = 128;  // ids of one width

// Returns the gap before ids[i]: of the first the id itself.
uint64_t GapAt(std::span<const uint64_t> ids, size_t i) {
  return i == 0 ? ids[0] : ids[i] - ids[i - 1] - 1;
}

// Returns the width of the block of ids that begins at `begin`.
int WidthOf(std::span<const uint64_t> ids, size_t begin, size_t end) {
  uint64_t all = 0;
  for (size_t i = begin; i < end; ++i) all |= GapAt(ids, i);
  return std::bit_width(all);
}

constexpr size_t GapBytes(size_t count, int width) {
  return (count * static_cast<size_t>(width) + 7) / 8;
}

constexpr uint64_t Low(int bits) { return bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1; }

// A writer of bits, low ones first.
class BitWriter {
 public:
  explicit BitWriter(std::byte* out) : out_(out) {}

  void Add(uint64_t value, int width) {
    // In halves, so that what is held never has more than 7 + 32 bits.
    const int first = std::min(width, 32);
    AddHalf(value & Low(first), first);
    if (width > 32) AddHalf(value >> 32, width - 32);
  }
  void Finish() {
    if (held_ > 0) *out_ = static_cast<std::byte>(bits_);
  }

 private:
  void AddHalf(uint64_t value, int width) {
    bits_ |= value << held_;
    held_ += width;
    for (; held_ >= 8; held_ -= 8, bits_ >>= 8) *out_++ = static_cast<std::byte>(bits_);
  }

  std::byte* out_;
  uint64_t bits_ = 0;
  int held_ = 0;
};

// Returns `width` bits from bit `at` on. REQUIRES: they lie in `in`.
uint64_t BitsAt(ByteSpan in, size_t at, int width) {
  uint64_t value = 0;
  int done = 0;
  size_t byte = at / 8;
  int skip = static_cast<int>(at % 8);
  if (byte + 8 <= in.size() && skip + width <= 64) {
    return width == 0 ? 0 : (LoadLittle<uint64_t>(in, byte) >> skip) & Low(width);
  }
  while (done < width) {
    const int take = std::min(8 - skip, width - done);
    const uint64_t bits = (std::to_integer<uint64_t>(in[byte]) >> skip) & Low(take);
    value |= bits << done;
    done += take;
    skip = 0;
    ++byte;
  }
  return value;
}

}  // namespace

size_t PackedIdsBytes(std::span<const uint64_t> ids) {
  size_t bytes = 0;
  for (size_t begin = 0; begin < ids.size(); begin += kBlock) {
    const size_t end = std::min(ids.size(), begin + kBlock);
    bytes += 1 + GapBytes(end - begin, WidthOf(ids, begin, end));
  }
  return bytes;
}

size_t PackIds(std::span<const uint64_t> ids, MutableByteSpan out) {
  size_t used = 0;
  for (size_t begin = 0; begin < ids.size(); begin += kBlock) {
    const size_t end = std::min(ids.size(), begin + kBlock);
    const int width = WidthOf(ids, begin, end);
    out[used++] = static_cast<std::byte>(width);
    BitWriter writer(out.data() + used);
    for (size_t i = begin; i < end; ++i) writer.Add(GapAt(ids, i), width);
    writer.Finish();
    used += GapBytes(end - begin, width);
  }
  return used;
}

absl::StatusOr<size_t> UnpackIds(ByteSpan in, size_t count, std::vector<uint64_t>* ids) {
  ids->clear();
  // Each block takes a byte at least, so a short frame cannot ask for much memory.
  if ((count + kBlock - 1) / kBlock > in.size()) {
    return InvalidArgument("%d ids do not fit into %d bytes", count, in.size());
  }
  ids->reserve(count);
  size_t used = 0;
  uint64_t least = 0;      // the least that the next id may be
  bool is_at_end = false;  // the last id was the greatest that there is
  while (ids->size() < count) {
    const size_t in_block = std::min(kBlock, count - ids->size());
    if (used >= in.size()) return InvalidArgument("a list of ids ends early");
    const int width = std::to_integer<int>(in[used++]);
    if (width > 64) return InvalidArgument("ids with gaps of %d bits", width);
    const size_t bytes = GapBytes(in_block, width);
    if (bytes > in.size() - used) return InvalidArgument("a list of ids ends early");
    const ByteSpan block = in.subspan(used, bytes);
    uint64_t all = 0;
    for (size_t i = 0; i < in_block; ++i) {
      const uint64_t gap = BitsAt(block, i * static_cast<size_t>(width), width);
      all |= gap;
      const uint64_t id = least + gap;
      if (is_at_end || id < least) return InvalidArgument("ids rise beyond 64 bits");
      ids->push_back(id);
      is_at_end = id == ~uint64_t{0};
      least = id + 1;
    }
    const size_t spare = bytes * 8 - in_block * static_cast<size_t>(width);
    const bool has_spare =
        spare > 0 && (std::to_integer<unsigned>(block.back()) >> (8 - spare)) != 0;
    if (std::bit_width(all) != static_cast<size_t>(width) || has_spare) {
      return InvalidArgument("ids in another encoding than their only one");
    }
    used += bytes;
  }
  return used;
}

}  // namespace bdn
