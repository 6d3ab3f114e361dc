#include "server/rows/row_round.h"

#include <algorithm>

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
  struct Rows {
    size_t table = 0;
    ByteSpan bytes;
    std::vector<size_t> places;
  };
  std::vector<std::optional<RowSums>> sums(link.tables.size());
  std::vector<Rows> all;
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
      Rows& rows = all.emplace_back();
      rows = {.table = i, .bytes = block.rows, .places = std::vector<size_t>(block.ids.size())};
      std::ranges::transform(block.ids, rows.places.begin(),
                             [&](uint64_t id) { return sums[i]->PlaceOf(id); });
    }
  }
  for (std::optional<RowSums>& of : sums) {
    if (of.has_value()) of->Grow();
  }
  for (const Rows& rows : all) {
    for (size_t i = 0; i < rows.places.size(); ++i) {
      const ByteSpan bytes = rows.bytes.subspan(i * link.push_row_bytes, link.push_row_bytes);
      const std::span<float> sum = sums[rows.table]->at(rows.places[i]);
      link.push->DecodeAdd(bytes, 1.0f, {sum.data(), DType::kFloat32, link.width});
    }
  }
  return sums;
}

}  // namespace bdn
