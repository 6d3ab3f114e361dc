#include "server/round.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "server/shard_context.h"

namespace bdn {

using Kind = Contribution::Kind;

void Round::Add(const KeyPlan& plan, BufferPool* pool, Place place, Contribution contribution) {
  const PrefixSum::Context context{plan, step_, pool};
  learning_rate_ = contribution.learning_rate;
  const uint32_t steps = contribution.program_steps;
  const Rank rank = places_->RankOf(place);
  // The lowest rank's is kept, so that the error of a mismatch does not depend on the order of
  // arrival.
  if (steps != 0 && (program_place_.steps == 0 || rank < program_place_.rank)) {
    program_place_ = {rank, steps};
  }
  // One gradient that is not finite decides the round, so the payloads so far and those to come are
  // not kept.
  if (contribution.kind == Kind::kNonFinite && !has_nonfinite_) DropPayloads();
  if (has_nonfinite_) contribution.payload = Buffer();
  if (!IsTurnOf(place)) {
    waiting_bytes_ += contribution.payload.size();
    waiting_.emplace(place, std::move(contribution));
    return;
  }
  Take(context, std::move(contribution));
  // This push may have been the one for which the pushes of later places waited.
  while (!waiting_.empty() && IsTurnOf(waiting_.begin()->first)) {
    Contribution next = std::move(waiting_.begin()->second);
    waiting_.erase(waiting_.begin());
    waiting_bytes_ -= next.payload.size();
    Take(context, std::move(next));
  }
  // The closing of a complete round adds the last payloads itself, in one pass with the encoding.
  // Without payloads the plan need have no codecs, as of a key of rows.
  if (!IsComplete() && sum_.payload_bytes() > 0) sum_.Fold(context);
}

void Round::Take(const PrefixSum::Context& context, Contribution contribution) {
  ++next_;
  total_weight_ += contribution.weight;
  is_all_absent_ &= contribution.kind == Kind::kAbsent;
  if (contribution.kind == Kind::kPayload && !has_nonfinite_) {
    sum_.Add(context, std::move(contribution.payload));
  }
}

void Round::DropPayloads() {
  has_nonfinite_ = true;
  sum_ = PrefixSum();
  for (auto& [place, contribution] : waiting_) contribution.payload = Buffer();
  waiting_bytes_ = 0;
}

bool Round::HasRank(Rank rank) const {
  if (!is_open()) return false;
  const std::optional<Place> place = places_->OfRank(rank);
  return place.has_value() && Has(*place);
}

Rank Round::FirstRank() const {
  if (next_ > 0) return places_->RankOf(PlaceAt(0));
  return waiting_.empty() ? -1 : places_->RankOf(waiting_.begin()->first);
}

std::vector<Rank> Round::RanksHere() const {
  std::vector<Rank> ranks;
  for (size_t i = 0; i < next_; ++i) ranks.push_back(places_->RankOf(PlaceAt(i)));
  for (const auto& [place, contribution] : waiting_) ranks.push_back(places_->RankOf(place));
  return ranks;
}

std::vector<Rank> Round::MissingRanks(Place asker) const {
  std::vector<Rank> missing;
  auto waiting = waiting_.begin();
  const size_t end = next_ + std::min(places_->size() - next_, kMostRanksTold);
  for (size_t i = next_; i < end; ++i) {
    if (waiting != waiting_.end() && waiting->first == PlaceAt(i)) {
      ++waiting;
    } else {
      missing.push_back(places_->RankOf(PlaceAt(i)));
    }
  }
  if (IndexOf(asker) >= end && !Has(asker)) missing.push_back(places_->RankOf(asker));
  return missing;
}

}  // namespace bdn
