#include "trace/link_use.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"

namespace bdn {
namespace {

// A link that is busy for this share of the time is named as the limit.
constexpr double kFull = 0.8;
// A peer that has no room for this share of the time is named as the limit instead.
constexpr double kHeldBack = 0.3;
// A smaller share of bytes that are sent again is usual.
constexpr double kLossy = 0.01;
// A round trip that is so many times the least one, and longer by so much, waits in a queue.
constexpr uint64_t kQueuedTimes = 5;
constexpr uint64_t kQueuedNs = 20'000'000;

// The samples of one link.
struct Samples {
  LinkUse use;
  std::vector<uint64_t> rates;
  std::vector<uint64_t> round_trips;
};

uint64_t MedianOf(std::vector<uint64_t> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void AddLink(const TraceRecord& record, LinkUse* use) {
  use->wall_ns += record.wall_ns;
  use->bytes_sent += record.key;
  use->bytes_received += record.step;
  use->bytes_sent_again += record.bytes;
  use->busy_ns += uint64_t{record.cpu_ticks} * kTraceTickNs;
}

void AddPath(const TraceRecord& record, Samples* samples) {
  if (record.key > 0) samples->rates.push_back(record.key);
  samples->round_trips.push_back(record.step);
  samples->use.held_back_ns += uint64_t{record.cpu_ticks} * kTraceTickNs;
  const uint64_t least = uint64_t{record.bytes} * 1000;
  uint64_t* const known = &samples->use.least_round_trip_ns;
  if (least > 0) *known = *known == 0 ? least : std::min(*known, least);
}

double Percent(double share) { return 100 * share; }

}  // namespace

std::vector<LinkUse> LinksOf(const JobTrace& job) {
  std::vector<LinkUse> links;
  for (uint32_t node = 0; node < job.nodes.size(); ++node) {
    std::map<NodeId, Samples> by_peer;
    for (const TraceRecord& record : job.nodes[node].trace.records) {
      const auto kind = static_cast<TraceKind>(record.kind);
      if (kind == TraceKind::kLinkSample) AddLink(record, &by_peer[record.peer].use);
      if (kind == TraceKind::kPathSample) AddPath(record, &by_peer[record.peer]);
    }
    for (auto& [peer, samples] : by_peer) {
      LinkUse use = samples.use;
      use.node = node;
      use.peer = peer;
      use.rate = MedianOf(std::move(samples.rates));
      use.round_trip_ns = MedianOf(std::move(samples.round_trips));
      links.push_back(use);
    }
  }
  return links;
}

std::vector<std::string> LinkFindings(const JobTrace& job, const std::vector<LinkUse>& links) {
  std::vector<std::string> findings;
  for (const LinkUse& link : links) {
    const std::string from = job.NodeName(link.node);
    const std::string to = job.NodeNameOf(link.peer);
    const double busy = link.Share(link.busy_ns);
    const double held_back = link.Share(link.held_back_ns);
    if (held_back >= kHeldBack) {
      findings.push_back(absl::StrFormat(
          "%s had no room for what %s sent for %.0f %% of the time: it is the limit there, and not "
          "the network",
          to, from, Percent(held_back)));
    } else if (busy >= kFull && link.rate > 0) {
      findings.push_back(absl::StrFormat(
          "the network from %s to %s is the limit: bytes were on their way for %.0f %% of the "
          "time, at %.1f MB/s; fewer bytes or a faster link make steps shorter",
          from, to, Percent(busy), link.SendRate() * 1e-6));
    }
    const double again = link.bytes_sent > 0 ? static_cast<double>(link.bytes_sent_again) /
                                                   static_cast<double>(link.bytes_sent)
                                             : 0;
    if (again >= kLossy) {
      findings.push_back(
          absl::StrFormat("%.1f %% of the bytes from %s to %s were sent again: the network between "
                          "them loses packets",
                          Percent(again), from, to));
    }
    if (link.least_round_trip_ns > 0 &&
        link.round_trip_ns >= kQueuedTimes * link.least_round_trip_ns &&
        link.round_trip_ns >= link.least_round_trip_ns + kQueuedNs) {
      findings.push_back(absl::StrFormat(
          "a round trip from %s to %s takes %.0f ms, and %.2f ms at its least: its bytes wait in a "
          "queue of the network",
          from, to, static_cast<double>(link.round_trip_ns) * 1e-6,
          static_cast<double>(link.least_round_trip_ns) * 1e-6));
    }
  }
  return findings;
}

}  // namespace bdn
