#include "server/shard_context.h"

#include <optional>
#include <utility>

#include "common/base/status.h"
#include "common/wire/headers.h"
#include "common/wire/message.h"

namespace bdn {

absl::Status CheckDigest(const Frame& fetch) {
  if (fetch.payload.empty() || fetch.payload.size() == kDigestBytes) return CheckPayload(fetch);
  return InvalidArgument("a fetch carries nothing or a digest of %d bytes, not %d", kDigestBytes,
                         fetch.payload.size());
}

ShardStats& ShardStats::operator+=(const ShardStats& other) {
  pushes += other.pushes;
  rounds += other.rounds;
  rounds_nonfinite += other.rounds_nonfinite;
  rounds_failed += other.rounds_failed;
  duplicates += other.duplicates;
  cached_replies += other.cached_replies;
  probes += other.probes;
  refused += other.refused;
  rebuilding += other.rebuilding;
  rebuilt += other.rebuilt;
  estimated += other.estimated;
  rows += other.rows;
  rows_updated += other.rows_updated;
  rows_fetched += other.rows_fetched;
  rows_added += other.rows_added;
  rows_removed += other.rows_removed;
  rows_not_admitted += other.rows_not_admitted;
  bytes_pushed += other.bytes_pushed;
  bytes_pushed_plain += other.bytes_pushed_plain;
  bytes_replied += other.bytes_replied;
  bytes_replied_plain += other.bytes_replied_plain;
  return *this;
}

void ShardContext::SetMembership(std::shared_ptr<const Membership> next) {
  membership = std::move(next);
  everyone = std::make_shared<const Places>(membership->workers);
  groups.clear();
}

std::shared_ptr<const Places> ShardContext::PlacesOf(const RankGroup& group) {
  if (group.is_all()) return everyone;
  std::shared_ptr<const Places>& places = groups[group];
  if (places == nullptr) places = std::make_shared<const Places>(membership->workers, group);
  return places;
}

absl::StatusOr<Place> ShardContext::PlaceOf(const Places& roster, NodeId from, Epoch epoch) const {
  if (epoch < membership->epoch) {
    return FailedPrecondition("epoch %d has ended; the membership is at epoch %d", epoch,
                              membership->epoch);
  }
  if (epoch > membership->epoch) {
    return Unavailable("epoch %d is not known here yet; the membership is at epoch %d", epoch,
                       membership->epoch);
  }
  if (const std::optional<Place> place = roster.OfNode(from); place.has_value()) return *place;
  if (everyone->OfNode(from).has_value()) {
    return InvalidArgument("node %d is none of the %d ranks that exchange this tensor", from,
                           roster.size());
  }
  return PermissionDenied("node %d is not in the roster of epoch %d", from, membership->epoch);
}

FrameHeader ShardContext::AnswerHeader(const FrameHeader& request, FrameType type) const {
  FrameHeader header = AnswerTo(request, type);
  StampHeader({options.self, membership->epoch, catalogue_version}, &header);
  return header;
}

Frame ShardContext::ErrorFrame(const FrameHeader& request, const absl::Status& status) const {
  return MakeFrame(AnswerHeader(request, FrameType::kError), EncodeError(status));
}

Sends ShardContext::ToAll(const Places& roster, const Frame& frame) {
  Sends sends;
  sends.reserve(roster.size());
  for (size_t i = 0; i < roster.size(); ++i) sends.push_back({roster.NodeOf(PlaceAt(i)), frame});
  return sends;
}

Sends ShardContext::Refuse(NodeId to, const FrameHeader& request, const absl::Status& status) {
  ++stats.refused;
  return {{to, ErrorFrame(request, status)}};
}

Sends ShardContext::Defer(NodeId to, const FrameHeader& request,
                          const std::vector<Rank>& missing) const {
  return {{to, MakeFrame(AnswerHeader(request, FrameType::kWaiting), EncodeRanks(missing))}};
}

}  // namespace bdn
