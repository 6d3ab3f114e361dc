#ifndef BANDONEON_SERVER_ROUND_H_
#define BANDONEON_SERVER_ROUND_H_

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "common/base/buffer.h"
#include "common/base/ids.h"
#include "common/telemetry/stage_times.h"
#include "common/wire/program_steps.h"
#include "server/places.h"
#include "server/prefix_sum.h"
#include "server/rank_waits.h"

namespace bdn {

// One worker's contribution to a round.
struct Contribution {
  enum class Kind : uint8_t { kAbsent, kNonFinite, kPayload };
  Kind kind = Kind::kAbsent;
  float weight = 0;
  float learning_rate = 0;
  uint32_t program_steps = 0;  // as in FrameHeader
  Buffer payload;              // still encoded; it was validated when it was received
};

// The open step of one key. Contributions are added in the order of places: those of the first
// places as far as they have arrived; a contribution that arrives before its turn waits until those
// of all lower places have arrived. Each call costs the same however many workers there are, and so
// do the bytes held where pushes arrive in that order. A value; not thread-safe.
class Round {
 public:
  bool is_open() const { return step_ != 0; }
  Step step() const { return step_; }  // 0: no round is open

  // Opens a step, which every place of `places` is to push.
  void Open(Step step, std::shared_ptr<const Places> places) {
    Close();
    step_ = step;
    places_ = std::move(places);
  }
  void Close() { *this = Round{}; }

  // Takes a contribution to the open step. REQUIRES: the roster has the place; !Has(place); its
  // learning rate is that of all others, and so is its program_steps, unless that is 0.
  void Add(const KeyPlan& plan, BufferPool* pool, Place place, Contribution contribution);

  // Notes that this place, which contributes to the open step, does not want the result.
  void NoteUnwanted(Place place) { unwanted_.push_back(place); }
  const std::vector<Place>& unwanted() const { return unwanted_; }
  // Notes that a push asks for the key to go uncompressed after this step.
  void NoteUncompressed() { asks_uncompressed_ = true; }
  bool asks_uncompressed() const { return asks_uncompressed_; }
  // Notes the step as of which the sender of a push holds a snapshot; 0: none.
  void NoteSaved(Step step) { saved_step_ = std::max(saved_step_, step); }
  Step saved_step() const { return saved_step_; }

  // BeginHold notes that a contribution was taken, which is held until the round has all of them.
  // EndHold then counts, for each, how long it was held and, unless `waits` is null, how long after
  // the round's first push it arrived. EndHold counts nothing if BeginHold was never called.
  void BeginHold(const StageSpan& span, Place place, uint64_t bytes) {
    if (held_.empty()) held_.reserve(places_->size());
    held_.push_back({span, bytes, places_->RankOf(place), places_->NodeOf(place)});
  }
  void EndHold(Key key, RankWaits* waits) {
    for (const Held& held : held_) {
      held.span.End(Stage::kHold, held.bytes, {.key = key, .step = step_, .peer = held.node});
      if (waits != nullptr) waits->Add(held.rank, held.span.NsAfter(held_.front().span));
    }
    held_.clear();
  }

  // Returns whether a place has contributed to the open round.
  bool Has(Place place) const {
    return is_open() && (IndexOf(place) < next_ || waiting_.find(place) != waiting_.end());
  }
  // Returns the same of a rank, and false where the roster does not have it.
  bool HasRank(Rank rank) const;
  bool IsComplete() const { return is_open() && next_ == places_->size(); }
  // Returns the lowest rank that has contributed, or -1.
  Rank FirstRank() const;
  // Returns whether it is the turn of this place: all lower ones have contributed, and it has not.
  bool IsTurnOf(Place place) const { return IndexOf(place) == next_; }
  // Returns the rank whose turn it is. REQUIRES: !IsComplete().
  Rank RankInTurn() const { return places_->RankOf(PlaceAt(next_)); }
  // Returns the ranks that have contributed, rising.
  std::vector<Rank> RanksHere() const;
  // Returns the learning rate, which all contributions share. REQUIRES: there is a contribution.
  float learning_rate() const { return learning_rate_; }
  // Returns the program's position as the lowest rank that knows it has told it.
  const ProgramPlace& program_place() const { return program_place_; }
  // Returns the ranks that have not contributed, rising: those among the kMostRanksTold places from
  // the one whose turn it is, and `asker` if it is one. Costs the same however many workers there
  // are.
  std::vector<Rank> MissingRanks(Place asker) const;

  // These are of all contributions. REQUIRES: IsComplete().
  bool has_nonfinite() const { return has_nonfinite_; }
  bool is_all_absent() const { return is_all_absent_; }
  double total_weight() const { return total_weight_; }  // weights of absent contributions count
  PrefixSum& sum() { return sum_; }  // of the payloads; empty if has_nonfinite()

  // Return the bytes held: payloads, and the sum of earlier payloads.
  size_t payload_bytes() const { return waiting_bytes_ + sum_.payload_bytes(); }
  size_t sum_bytes() const { return sum_.sum_bytes(); }

 private:
  struct Held {
    StageSpan span;
    uint64_t bytes;
    Rank rank;
    NodeId node;
  };

  void Take(const PrefixSum::Context& context, Contribution contribution);
  // Drops the payloads: a round that is not finite has no use for them.
  void DropPayloads();

  Step step_ = 0;
  std::shared_ptr<const Places> places_;  // null where no round is open
  size_t next_ = 0;                       // contributions of the places below this index are added
  float learning_rate_ = 0;
  ProgramPlace program_place_;
  bool has_nonfinite_ = false;  // of any contribution, added or waiting
  bool is_all_absent_ = true;   // of the added contributions, as the next two
  double total_weight_ = 0;
  PrefixSum sum_;
  absl::btree_map<Place, Contribution> waiting_;  // contributions that wait for lower places'
  size_t waiting_bytes_ = 0;
  std::vector<Place> unwanted_;  // in the order of arrival
  bool asks_uncompressed_ = false;
  Step saved_step_ = 0;
  std::vector<Held> held_;
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_ROUND_H_
