#include "server/rows/row_round.h"

#include "common/base/check.h"
#include "common/wire/row_block.h"

namespace bdn {

size_t WantedBytes(const WantedRows& wanted) {
  size_t bytes = 0;
  for (const WantedIds& of : wanted) bytes += of.ids.capacity() * sizeof(uint64_t);
  return bytes;
}

void RowRound::Add(const KeyPlan& plan, Place place, Contribution contribution, RowPush push) {
  if (!push.payload.empty()) ++num_payloads_;
  bytes_ += push.payload.size() + WantedBytes(push.wanted);
  // Contributions without a payload need no pool.
  roster_.Add(plan, /*pool=*/nullptr, place, std::move(contribution));
  pushes_[place] = std::move(push);
}

std::vector<std::optional<RowSums>> RowRound::Sum(const RowLink& link) const {
  std::vector<std::optional<RowSums>> sums(link.tables.size());
  RowBlock block;
  for (const auto& [place, push] : pushes_) {
    if (push.payload.empty()) continue;
    const auto parts = ReadRowParts(push.payload.span(), link.tables.size());
    // It was checked when it came, and is memory of this server.
    if (!parts.ok()) FailCheck("a push that was valid is so no more");
    for (size_t i = 0; i < link.tables.size(); ++i) {
      if (!(*parts)[i].has_value()) continue;
      const RowLimits limits{.row_bytes = link.push_row_bytes,
                             .bucket = link.bucket,
                             .buckets = link.buckets,
                             .rows = link.tables[i].spec.rows,
                             .most_wanted = kMostRows,
                             .takes_none = link.rule.is_mean()};
      const absl::Status valid = ReadRowBlock(*(*parts)[i], limits, &block);
      if (!valid.ok()) FailCheck("a block that was valid is so no more");
      if (!sums[i].has_value()) sums[i].emplace(link.width);
      for (size_t row = 0; row < block.ids.size(); ++row) {
        const ByteSpan bytes = block.rows.subspan(row * link.push_row_bytes, link.push_row_bytes);
        link.push->DecodeAdd(bytes, 1.0f,
                             {sums[i]->Of(block.ids[row]), DType::kFloat32, link.width});
      }
    }
  }
  return sums;
}

}  // namespace bdn
