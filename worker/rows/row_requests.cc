#include "worker/rows/row_requests.h"

#include <algorithm>
#include <cstring>

#include "common/base/draw.h"
#include "common/base/status.h"
#include "common/wire/message.h"
#include "common/wire/packed_ids.h"
#include "common/wire/row_block.h"

namespace bdn {
namespace {

// The most ids of one list of a caller, in which an id may be often.
constexpr size_t kMostPositions = size_t{1} << 31;

absl::Status CheckIdList(std::span<const uint64_t> ids, const RowLink::Table& table,
                         const char* what) {
  if (ids.size() > kMostPositions) {
    return InvalidArgument("table '%s': %d %s are more than %d in one call", table.name, ids.size(),
                           what, kMostPositions);
  }
  if (table.spec.rows == 0) return absl::OkStatus();
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < table.spec.rows) continue;
    return InvalidArgument("table '%s': id %d, at position %d of the %s, is not from 0 to %d",
                           table.name, static_cast<int64_t>(ids[i]), i, what, table.spec.rows - 1);
  }
  return absl::OkStatus();
}

std::span<const uint64_t> IdsOf(const TableInCall* table, uint32_t bucket) {
  return table == nullptr ? std::span<const uint64_t>() : table->ids.ids(bucket);
}

std::span<const uint64_t> WantedOf(const TableInCall* table, uint32_t bucket) {
  return table == nullptr ? std::span<const uint64_t>() : table->wanted.ids(bucket);
}

// Returns the keys by which a row's push is drawn: the same wherever the row lies.
Draw DrawOfRow(const RowDraws& draws, uint64_t name_hash, uint64_t id, Step step) {
  return Draw({.run_seed = draws.run_seed,
               .tensor_name_hash = name_hash ^ Mix64(id + 1),
               .step = step,
               .purpose = DrawPurpose::kWorkerEncode,
               .rank = draws.rank});
}

bool WantsSome(const TableInCall* table) { return table != nullptr && !table->wanted.empty(); }

// Decodes the rows that a table wants of a bucket into the caller's array.
absl::Status DecodeWanted(const RowLink& link, uint32_t bucket, const TableInCall& table,
                          ByteSpan part) {
  const RowSet& set = table.wanted;
  const size_t count = set.ids(bucket).size();
  BDN_ASSIGN_OR_RETURN(const ByteSpan rows, ReadRowAnswer(part, count, link.pull_row_bytes));
  for (size_t j = 0; j < count; ++j) {
    const ByteSpan row = rows.subspan(j * link.pull_row_bytes, link.pull_row_bytes);
    BDN_RETURN_IF_ERROR(link.pull->Validate(row, link.width, DType::kFloat32));
    const auto positions = set.positions(set.begin(bucket) + j);
    float* const first = table.rows.out + positions[0] * link.width;
    link.pull->Decode(row, 1.0f, {first, DType::kFloat32, link.width});
    for (const uint32_t position : positions.subspan(1)) {
      std::copy_n(first, link.width, table.rows.out + position * link.width);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTableRows(const TableRows& rows, const RowLink::Table& table, size_t width) {
  if (!rows.ids.empty() && rows.gradients == nullptr) {
    return InvalidArgument("table '%s': %d ids without rows", table.name, rows.ids.size());
  }
  if (!rows.wanted.empty() && rows.out == nullptr) {
    return InvalidArgument(
        "table '%s': %d rows of %d elements are wanted, and there is no array "
        "for them",
        table.name, rows.wanted.size(), width);
  }
  BDN_RETURN_IF_ERROR(CheckIdList(rows.ids, table, "ids"));
  return CheckIdList(rows.wanted, table, "wanted ids");
}

bool IsLeftOut(const TableInCall* table) {
  return table == nullptr || (table->rows.ids.data() == nullptr && table->rows.wanted.empty());
}

std::unique_ptr<TableInCall> SplitTable(const TableRows& rows, uint32_t buckets) {
  auto table = std::make_unique<TableInCall>();
  table->rows = rows;
  table->ids = RowSet(rows.ids, buckets);
  table->wanted = RowSet(rows.wanted, buckets);
  return table;
}

absl::Status CheckRowFrames(const RowLink& link, const TablesInCall& tables) {
  for (uint32_t bucket = 0; bucket < link.buckets; ++bucket) {
    std::vector<std::optional<size_t>> pushed(tables.size());
    std::vector<std::optional<size_t>> told(tables.size());
    size_t rows = 0;
    bool has_room = true;
    for (size_t i = 0; i < tables.size(); ++i) {
      if (tables[i] == nullptr) continue;
      const auto ids = IdsOf(tables[i].get(), bucket);
      const auto wanted = WantedOf(tables[i].get(), bucket);
      pushed[i] = RowBlockBytes(ids, wanted, link.push_row_bytes);
      told[i] = RowAnswerBytes(wanted.size(), link.pull_row_bytes);
      rows += std::max(ids.size(), wanted.size());
      has_room = has_room && std::max(ids.size(), wanted.size()) <= kMostRows;
    }
    const size_t longest = std::max(RowPayloadBytes(pushed), RowPayloadBytes(told));
    if (longest <= kMaxRowsPayload && has_room) continue;
    return InvalidArgument(
        "table '%s': %d rows of bucket %d of %d take %d bytes, and a frame has at most %d: have "
        "the scheduler begin the job with a higher row-buckets, or push fewer rows in a step",
        link.tables[0].name, rows, bucket, link.buckets, longest, kMaxRowsPayload);
  }
  return absl::OkStatus();
}

std::optional<Buffer> EncodeRowPush(const RowLink& link, uint32_t bucket,
                                    const TablesInCall& tables, float scale, Step step,
                                    const RowDraws& draws) {
  std::vector<std::optional<size_t>> lengths(tables.size());
  for (size_t i = 0; i < tables.size(); ++i) {
    if (IsLeftOut(tables[i].get())) continue;
    lengths[i] = RowBlockBytes(IdsOf(tables[i].get(), bucket), WantedOf(tables[i].get(), bucket),
                               link.push_row_bytes);
  }
  const RowPayload payload = MakeRowPayload(lengths);
  std::vector<float> scratch(link.width);
  for (size_t i = 0; i < tables.size(); ++i) {
    if (!lengths[i].has_value()) continue;
    const TableInCall& table = *tables[i];
    const auto ids = table.ids.ids(bucket);
    // Of means a worker gets all, unless it says what it wants, and in which buckets nothing.
    const auto wanted = table.wanted.ids(bucket);
    const bool wants_none = link.rule.is_mean() && wanted.empty() && WantsSome(&table);
    MutableByteSpan out = WriteRowBlock(ids, wanted, payload.parts[i], wants_none);
    for (size_t j = 0; j < ids.size(); ++j) {
      const std::span<const float> row =
          MergeRows(table.ids, table.ids.begin(bucket) + j, table.rows.gradients, scratch);
      const Draw draw = DrawOfRow(draws, link.tables[i].name_hash, ids[j], step);
      // Only a value that is not finite makes this fail.
      if (!link.push->Encode({row.data(), DType::kFloat32, row.size()}, scale, draw, out).ok()) {
        return std::nullopt;
      }
      out = out.subspan(link.push_row_bytes);
    }
  }
  return payload.bytes;
}

Buffer EncodeRowFetch(uint32_t bucket, const TablesInCall& tables) {
  std::vector<std::optional<size_t>> lengths(tables.size());
  for (size_t i = 0; i < tables.size(); ++i) {
    const auto wanted = WantedOf(tables[i].get(), bucket);
    if (!wanted.empty()) lengths[i] = RowBlockBytes({}, wanted, 0);
  }
  const RowPayload payload = MakeRowPayload(lengths);
  for (size_t i = 0; i < tables.size(); ++i) {
    if (lengths[i].has_value()) {
      (void)WriteRowBlock({}, WantedOf(tables[i].get(), bucket), payload.parts[i]);
    }
  }
  return payload.bytes;
}

Buffer EncodeRowInit(const RowLink& link, uint32_t bucket, size_t segment, const TableInCall& table,
                     size_t first, size_t count) {
  const size_t row_bytes = link.width * sizeof(float);
  const auto ids = table.ids.ids(bucket).subspan(first, count);
  std::vector<std::optional<size_t>> lengths(link.tables.size());
  lengths[segment] = RowBlockBytes(ids, {}, row_bytes);
  const RowPayload payload = MakeRowPayload(lengths);
  const MutableByteSpan out = WriteRowBlock(ids, {}, payload.parts[segment]);
  for (size_t j = 0; j < count; ++j) {
    const uint32_t position = table.ids.positions(table.ids.begin(bucket) + first + j)[0];
    std::memcpy(out.data() + j * row_bytes, table.rows.gradients + position * link.width,
                row_bytes);
  }
  return payload.bytes;
}

absl::StatusOr<BucketMeans> DecodeMeans(const RowLink& link, uint32_t bucket,
                                        const TablesInCall& tables, ByteSpan payload) {
  const auto bad = [&](const absl::Status& why) {
    return Internal("table '%s': the means of rows of bucket %d: %s", link.tables[0].name, bucket,
                    why.message());
  };
  const absl::StatusOr<RowParts> parts = ReadRowParts(payload, tables.size());
  if (!parts.ok()) return bad(parts.status());
  BucketMeans means(tables.size());
  for (size_t i = 0; i < tables.size(); ++i) {
    const std::optional<ByteSpan>& part = (*parts)[i];
    if (WantsSome(tables[i].get())) {
      if (tables[i]->wanted.ids(bucket).empty() == part.has_value()) {
        return bad(InvalidArgument("part %d is there or not, against what is wanted", i));
      }
      if (!part.has_value()) continue;
      const absl::Status read = DecodeWanted(link, bucket, *tables[i], *part);
      if (!read.ok()) return bad(read);
      continue;
    }
    if (!part.has_value()) continue;
    const RowLimits limits{.row_bytes = link.pull_row_bytes,
                           .bucket = bucket,
                           .buckets = link.buckets,
                           .rows = link.tables[i].spec.rows};
    RowBlock block;
    const absl::Status read = ReadRowBlock(*part, limits, &block);
    if (!read.ok()) return bad(read);
    SummedRows& of = means[i].emplace();
    of.rows.resize(block.ids.size() * link.width);
    for (size_t j = 0; j < block.ids.size(); ++j) {
      const ByteSpan row = block.rows.subspan(j * link.pull_row_bytes, link.pull_row_bytes);
      const absl::Status valid = link.pull->Validate(row, link.width, DType::kFloat32);
      if (!valid.ok()) return bad(valid);
      link.pull->Decode(row, 1.0f, {of.rows.data() + j * link.width, DType::kFloat32, link.width});
    }
    of.ids = std::move(block.ids);
  }
  return means;
}

void FillWanted(const RowLink& link, uint32_t bucket, const TablesInCall& tables, float value) {
  for (const auto& table : tables) {
    if (table == nullptr) continue;
    const RowSet& set = table->wanted;
    for (size_t j = 0; j < set.ids(bucket).size(); ++j) {
      for (const uint32_t position : set.positions(set.begin(bucket) + j)) {
        std::fill_n(table->rows.out + position * link.width, link.width, value);
      }
    }
  }
}

size_t RecordBytesOf(const RowLink& link) {
  return RecordBytes(link.width, link.rule.MomentFloats(link.width));
}

Buffer EncodeRecordsInit(uint32_t bucket, const TableInCall& table, const std::byte* records,
                         size_t record_bytes, const RecordsHead& head, size_t first, size_t count) {
  MutableByteSpan out;
  Buffer payload =
      MakeRecords(head, table.ids.ids(bucket).subspan(first, count), record_bytes, &out);
  for (size_t j = 0; j < count; ++j) {
    const uint32_t position = table.ids.positions(table.ids.begin(bucket) + first + j)[0];
    std::memcpy(out.data() + j * record_bytes, records + position * record_bytes, record_bytes);
  }
  return payload;
}

absl::Status DecodeRecordsValue(const RowLink& link, size_t segment, const RecordsScan& scan,
                                ByteSpan payload) {
  const RowLink::Table& table = link.tables[segment];
  const RowLimits limits{.row_bytes = RecordBytesOf(link),
                         .bucket = scan.bucket,
                         .buckets = link.buckets,
                         .rows = table.spec.rows,
                         .most_wanted = 0};
  const absl::StatusOr<Records> records = DecodeRecords(payload, limits);
  if (!records.ok()) {
    return Internal("table '%s': an answer about records of bucket %d: %s", table.name, scan.bucket,
                    records.status().message());
  }
  const RowBlock& block = records->block;
  const RecordsHead& head = records->head;
  if (head.list != scan.list) {
    return Internal("table '%s': an answer about records of bucket %d is of another list",
                    table.name, scan.bucket);
  }
  if (block.ids.size() > scan.room || (head.next != 0 && head.next <= scan.cursor)) {
    return Internal(
        "table '%s': an answer about records of bucket %d has %d, of %d wanted, and goes on at %d "
        "after %d",
        table.name, scan.bucket, block.ids.size(), scan.room, head.next, scan.cursor);
  }
  std::ranges::copy(block.ids, scan.ids);
  std::ranges::copy(block.rows, scan.records);
  *scan.next = head.next;
  *scan.count = block.ids.size();
  *scan.updates = head.updates;
  *scan.complete_since = head.complete_since;
  return absl::OkStatus();
}

absl::Status DecodeRowAnswer(const RowLink& link, uint32_t bucket, const TablesInCall& tables,
                             ByteSpan payload) {
  const auto bad = [&](const absl::Status& why) {
    return Internal("table '%s': an answer about rows of bucket %d: %s", link.tables[0].name,
                    bucket, why.message());
  };
  const absl::StatusOr<RowParts> parts = ReadRowParts(payload, tables.size());
  if (!parts.ok()) return bad(parts.status());
  for (size_t i = 0; i < tables.size(); ++i) {
    const auto wanted = WantedOf(tables[i].get(), bucket);
    if (wanted.empty() != !(*parts)[i].has_value()) {
      return bad(InvalidArgument("part %d is there or not, against what is wanted", i));
    }
    if (wanted.empty()) continue;
    const absl::Status read = DecodeWanted(link, bucket, *tables[i], *(*parts)[i]);
    if (!read.ok()) return bad(read);
  }
  return absl::OkStatus();
}

}  // namespace bdn
