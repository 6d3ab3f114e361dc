#include "common/telemetry/link_samples.h"

#include <algorithm>
#include <utility>

namespace bdn {
namespace {

uint64_t BytesOf(const TraceRecord& link) { return link.key + link.step; }

}  // namespace

std::vector<TraceRecord> LinkSamples::Take(int64_t now_ns, const std::vector<LinkTotals>& links) {
  using Pair = std::pair<TraceRecord, TraceRecord>;
  std::vector<Pair> pairs;
  const auto wall_ns = static_cast<uint64_t>(std::max<int64_t>(0, now_ns - at_ns_));
  absl::flat_hash_map<NodeId, LinkTotals> now;
  for (const LinkTotals& link : links) {
    now[link.peer] = link;
    if (!has_begun_) continue;
    const auto found = before_.find(link.peer);
    // Its totals are less than these where a connection was replaced by a new one.
    const LinkTotals before = found == before_.end() ? LinkTotals() : found->second;
    const TraceRecord moved = {
        .begin_ns = at_ns_,
        .wall_ns = wall_ns,
        .key = RiseOf(before.bytes_sent, link.bytes_sent),
        .step = RiseOf(before.bytes_received, link.bytes_received),
        .cpu_ticks = TraceField(RiseOf(before.busy_ns, link.busy_ns) / kTraceTickNs),
        .bytes = TraceField(RiseOf(before.bytes_sent_again, link.bytes_sent_again)),
        .peer = link.peer,
        .kind = static_cast<uint8_t>(TraceKind::kLinkSample)};
    if (BytesOf(moved) == 0) continue;
    const TraceRecord path = {
        .begin_ns = at_ns_,
        .wall_ns = wall_ns,
        .key = link.rate,
        .step = link.round_trip_ns,
        .cpu_ticks = TraceField(RiseOf(before.held_back_ns, link.held_back_ns) / kTraceTickNs),
        .bytes = TraceField(link.least_round_trip_ns / 1000),
        .peer = link.peer,
        .kind = static_cast<uint8_t>(TraceKind::kPathSample)};
    pairs.emplace_back(moved, path);
  }
  has_begun_ = true;
  before_ = std::move(now);
  at_ns_ = now_ns;
  std::stable_sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) {
    return BytesOf(a.first) > BytesOf(b.first);
  });
  if (pairs.size() > kMostPeers) pairs.resize(kMostPeers);
  std::vector<TraceRecord> records;
  for (const auto& [moved, path] : pairs) {
    records.push_back(moved);
    records.push_back(path);
  }
  return records;
}

}  // namespace bdn
