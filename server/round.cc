#include "server/round.h"

#include <algorithm>
#include <utility>

#include "server/shard_context.h"

namespace bdn {

using Kind = Contribution::Kind;

void Round::Add(const KeyPlan& plan, BufferPool* pool, Rank rank, Contribution contribution) {
  const PrefixSum::Context context{plan, step_, pool};
  learning_rate_ = contribution.learning_rate;
  const uint32_t steps = contribution.program_steps;
  // The lowest rank's is kept, so that the error of a mismatch does not depend on the order of
  // arrival.
  if (steps != 0 && (program_place_.steps == 0 || rank < program_place_.rank)) {
    program_place_ = {rank, steps};
  }
  // One gradient that is not finite decides the round, so the payloads so far and those to come are
  // not kept.
  if (contribution.kind == Kind::kNonFinite && !has_nonfinite_) DropPayloads();
  if (has_nonfinite_) contribution.payload = Buffer();
  if (rank != next_) {
    waiting_bytes_ += contribution.payload.size();
    waiting_.emplace(rank, std::move(contribution));
    return;
  }
  Take(context, std::move(contribution));
  // This push may have been the one for which later ranks' pushes waited.
  while (!waiting_.empty() && waiting_.begin()->first == next_) {
    Contribution next = std::move(waiting_.begin()->second);
    waiting_.erase(waiting_.begin());
    waiting_bytes_ -= next.payload.size();
    Take(context, std::move(next));
  }
  // The closing of a complete round adds the last payloads itself, in one pass with the encoding.
  if (!IsComplete()) sum_.Fold(context);
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
  for (auto& [rank, contribution] : waiting_) contribution.payload = Buffer();
  waiting_bytes_ = 0;
}

std::vector<Rank> Round::MissingRanks(Rank asker) const {
  std::vector<Rank> missing;
  auto waiting = waiting_.begin();
  const Rank end = next_ + static_cast<Rank>(
                               std::min(roster_size_ - static_cast<size_t>(next_), kMostRanksTold));
  for (Rank rank = next_; rank < end; ++rank) {
    if (waiting != waiting_.end() && waiting->first == rank) {
      ++waiting;
    } else {
      missing.push_back(rank);
    }
  }
  if (asker >= end && !Has(asker)) missing.push_back(asker);
  return missing;
}

}  // namespace bdn
