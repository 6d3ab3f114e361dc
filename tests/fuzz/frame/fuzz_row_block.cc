// Any bytes are the payload of a frame about rows or records, or are refused; the reference decoder
// agrees, and what is taken encodes to its own bytes.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "common/wire/row_block.h"
#include "common/wire/row_records.h"
#include "tests/reference/rows_reference.h"

namespace {

void Check(bool holds) {
  if (!holds) std::abort();
}

void CheckRecords(const std::vector<uint8_t>& bytes, const rows_reference::Facts& facts,
                  const bdn::RowLimits& limits) {
  const bdn::ByteSpan span = std::as_bytes(std::span(bytes));
  const auto ask = bdn::DecodeRecordsAsk(span);
  const auto asked = rows_reference::ReadAsk(bytes);
  Check(ask.ok() == asked.has_value());
  if (ask.ok()) {
    const bdn::Buffer again = bdn::EncodeRecordsAsk(*ask);
    Check(std::ranges::equal(again.span(), span));
  }
  const auto records = bdn::DecodeRecords(span, limits);
  const auto reference = rows_reference::ReadRecords(bytes, facts);
  Check(records.ok() == reference.has_value());
  if (!records.ok()) return;
  bdn::MutableByteSpan rows;
  const bdn::Buffer again =
      bdn::MakeRecords(records->head, records->block.ids,
                       bdn::ListedBytes(records->head.list, limits.row_bytes), &rows);
  std::ranges::copy(records->block.rows, rows.begin());
  Check(std::ranges::equal(again.span(), span));
  Check(reference->block.ids == records->block.ids && reference->updates == records->head.updates);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 3) return 0;
  const rows_reference::Facts facts{.segments = 1u + data[0] % 3u,
                                    .row_bytes = data[1] % 9u,
                                    .bucket = data[2] % 2u,
                                    .buckets = data[2] % 2u == 1 ? 2u : 1u + data[2] / 128u,
                                    .rows = data[0] / 64u * 1000u,
                                    .most_wanted = 300,
                                    .is_mean = data[1] / 16u % 2u == 1};
  const std::vector<uint8_t> bytes(data + 3, data + size);
  const bdn::ByteSpan span = std::as_bytes(std::span(bytes));
  const auto reference = rows_reference::ReadBlocks(bytes, facts);
  const auto parts = bdn::ReadRowParts(span, facts.segments);
  bool is_ok = parts.ok();
  const bdn::RowLimits limits{.row_bytes = facts.row_bytes,
                              .bucket = static_cast<uint32_t>(facts.bucket),
                              .buckets = static_cast<uint32_t>(facts.buckets),
                              .rows = facts.rows,
                              .most_wanted = facts.most_wanted,
                              .takes_none = facts.is_mean};
  CheckRecords(bytes, facts, limits);
  for (size_t i = 0; is_ok && i < parts->size(); ++i) {
    if (!(*parts)[i].has_value()) continue;
    bdn::RowBlock block;
    is_ok = bdn::ReadRowBlock(*(*parts)[i], limits, &block).ok();
    if (!is_ok) break;
    std::vector<std::byte> again(bdn::RowBlockBytes(block.ids, block.wanted, facts.row_bytes));
    const auto rows = bdn::WriteRowBlock(block.ids, block.wanted, again, block.wants_none);
    std::copy(block.rows.begin(), block.rows.end(), rows.begin());
    Check(std::equal(again.begin(), again.end(), (*parts)[i]->begin(), (*parts)[i]->end()));
    if (!reference.has_value()) continue;
    Check((*reference)[i].has_value() && (*reference)[i]->ids == block.ids);
    Check((*reference)[i]->wanted == block.wanted);
  }
  Check(is_ok == reference.has_value());
  return 0;
}
