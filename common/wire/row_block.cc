#include "common/wire/row_block.h"

#include <algorithm>
#include <cstring>

#include "common/base/endian.h"
#include "common/base/status.h"
#include "common/wire/packed_ids.h"

namespace bdn {
namespace {

constexpr uint32_t kLeftOut = 0xFFFFFFFFu;
// In place of the number of wanted rows.
constexpr uint32_t kNone = 0xFFFFFFFFu;
constexpr size_t kWord = sizeof(uint32_t);

constexpr size_t PaddedTo4(size_t bytes) { return (bytes + 3) / 4 * 4; }

absl::Status CheckIds(std::span<const uint64_t> ids, const RowLimits& limits) {
  if (!ids.empty() && limits.rows != 0 && ids.back() >= limits.rows) {
    return InvalidArgument("id %d of a table of %d rows", ids.back(), limits.rows);
  }
  for (const uint64_t id : ids) {
    if (BucketOf(id, limits.buckets) != limits.bucket) {
      return InvalidArgument("id %d is of bucket %d, not of %d of %d", id,
                             BucketOf(id, limits.buckets), limits.bucket, limits.buckets);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RowParts> ReadRowParts(ByteSpan payload, size_t segments) {
  if (segments == 1) {
    if (payload.empty()) return InvalidArgument("no part is there");
    return RowParts{payload};
  }
  size_t at = segments * kWord;
  if (payload.size() < at) return InvalidArgument("the table of lengths is cut off");
  RowParts parts(segments);
  bool has_any = false;
  for (size_t i = 0; i < segments; ++i) {
    const auto length = LoadLittle<uint32_t>(payload, i * kWord);
    if (length == kLeftOut) continue;
    const size_t padded = PaddedTo4(length);
    if (padded > payload.size() - at) {
      return InvalidArgument("part %d of %d bytes does not fit", i, length);
    }
    for (size_t j = length; j < padded; ++j) {
      if (payload[at + j] != std::byte{0}) return InvalidArgument("padding that is not zero");
    }
    parts[i] = payload.subspan(at, length);
    has_any = true;
    at += padded;
  }
  if (!has_any) return InvalidArgument("no part is there");
  if (at != payload.size()) {
    return InvalidArgument("%d bytes follow the last part", payload.size() - at);
  }
  return parts;
}

size_t RowPayloadBytes(std::span<const std::optional<size_t>> lengths) {
  const auto is_there = [](const auto& length) { return length.has_value(); };
  if (std::ranges::none_of(lengths, is_there)) return 0;
  if (lengths.size() == 1) return *lengths[0];
  size_t bytes = lengths.size() * kWord;
  for (const auto& length : lengths) bytes += PaddedTo4(length.value_or(0));
  return bytes;
}

RowPayload MakeRowPayload(std::span<const std::optional<size_t>> lengths) {
  RowPayload payload{.bytes = Buffer(), .parts = std::vector<MutableByteSpan>(lengths.size())};
  const size_t bytes = RowPayloadBytes(lengths);
  if (bytes == 0) return payload;
  payload.bytes = Buffer::Allocate(bytes);
  const MutableByteSpan out = payload.bytes.mutable_span();
  if (lengths.size() == 1) {
    payload.parts[0] = out;
    return payload;
  }
  size_t at = lengths.size() * kWord;
  for (size_t i = 0; i < lengths.size(); ++i) {
    StoreLittle(out, i * kWord,
                lengths[i].has_value() ? static_cast<uint32_t>(*lengths[i]) : kLeftOut);
    if (!lengths[i].has_value()) continue;
    const size_t padded = PaddedTo4(*lengths[i]);
    payload.parts[i] = out.subspan(at, *lengths[i]);
    std::fill(out.begin() + static_cast<ptrdiff_t>(at + *lengths[i]),
              out.begin() + static_cast<ptrdiff_t>(at + padded), std::byte{0});
    at += padded;
  }
  return payload;
}

absl::Status ReadRowBlock(ByteSpan part, const RowLimits& limits, RowBlock* block) {
  if (part.size() < 2 * kWord) return InvalidArgument("a block of rows of %d bytes", part.size());
  const auto count = LoadLittle<uint32_t>(part, 0);
  const auto wanted_or_none = LoadLittle<uint32_t>(part, kWord);
  block->wants_none = limits.takes_none && wanted_or_none == kNone;
  const uint32_t wanted = block->wants_none ? 0 : wanted_or_none;
  if (count > kMostRows) return InvalidArgument("%d rows are more than %d", count, kMostRows);
  if (wanted > kMostRows || wanted > limits.most_wanted) {
    return InvalidArgument("%d rows are wanted, at most %d may be", wanted,
                           std::min<uint64_t>(kMostRows, limits.most_wanted));
  }
  size_t at = 2 * kWord;
  // Before the ids are read: rows are longer than their ids may become in memory.
  if (limits.row_bytes != 0 && count > (part.size() - at) / limits.row_bytes) {
    return InvalidArgument("%d rows do not fit into %d bytes", count, part.size());
  }
  BDN_ASSIGN_OR_RETURN(size_t used, UnpackIds(part.subspan(at), count, &block->ids));
  at += used;
  BDN_ASSIGN_OR_RETURN(used, UnpackIds(part.subspan(at), wanted, &block->wanted));
  at += used;
  if (part.size() - at != count * limits.row_bytes) {
    return InvalidArgument("%d bytes of %d rows, which have %d each", part.size() - at, count,
                           limits.row_bytes);
  }
  block->rows = part.subspan(at);
  BDN_RETURN_IF_ERROR(CheckIds(block->ids, limits));
  return CheckIds(block->wanted, limits);
}

size_t RowBlockBytes(std::span<const uint64_t> ids, std::span<const uint64_t> wanted,
                     size_t row_bytes) {
  return 2 * kWord + PackedIdsBytes(ids) + PackedIdsBytes(wanted) + ids.size() * row_bytes;
}

MutableByteSpan WriteRowBlock(std::span<const uint64_t> ids, std::span<const uint64_t> wanted,
                              MutableByteSpan part, bool wants_none) {
  StoreLittle(part, 0, static_cast<uint32_t>(ids.size()));
  StoreLittle(part, kWord, wants_none ? kNone : static_cast<uint32_t>(wanted.size()));
  size_t at = 2 * kWord;
  at += PackIds(ids, part.subspan(at));
  at += PackIds(wanted, part.subspan(at));
  return part.subspan(at);
}

absl::StatusOr<ByteSpan> ReadRowAnswer(ByteSpan part, size_t count, size_t row_bytes) {
  if (part.size() < kWord || LoadLittle<uint32_t>(part, 0) != count ||
      part.size() - kWord != count * row_bytes) {
    return InvalidArgument("%d bytes are no answer of %d rows of %d bytes", part.size(), count,
                           row_bytes);
  }
  return part.subspan(kWord);
}

MutableByteSpan WriteRowAnswer(size_t count, MutableByteSpan part) {
  StoreLittle(part, 0, static_cast<uint32_t>(count));
  return part.subspan(kWord);
}

}  // namespace bdn
