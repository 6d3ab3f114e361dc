#ifndef BANDONEON_SERVER_ROUND_H_
#define BANDONEON_SERVER_ROUND_H_

#include <vector>

#include "absl/container/btree_map.h"
#include "common/base/buffer.h"
#include "common/base/ids.h"
#include "common/telemetry/stage_times.h"
#include "common/wire/program_steps.h"
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

// The open step of one key. Contributions are added in rank order: those of ranks 0, 1, ... as far
// as they have arrived; a contribution that arrives before its turn waits until all lower ranks'
// have arrived. Each call costs the same however many workers there are, and so do the bytes held
// where pushes arrive in rank order. A value; not thread-safe.
class Round {
 public:
  bool is_open() const { return step_ != 0; }
  Step step() const { return step_; }  // 0: no round is open
  size_t roster_size() const { return roster_size_; }

  void Open(Step step, size_t roster_size) {
    Close();
    step_ = step;
    roster_size_ = roster_size;
  }
  void Close() { *this = Round{}; }

  // Takes a contribution to the open step. REQUIRES: 0 <= rank < roster_size(); !Has(rank); its
  // learning rate is that of all others, and so is its program_steps, unless that is 0.
  void Add(const KeyPlan& plan, BufferPool* pool, Rank rank, Contribution contribution);

  // Notes that this rank, which contributes to the open step, does not want the result.
  void NoteUnwanted(Rank rank) { unwanted_.push_back(rank); }
  const std::vector<Rank>& unwanted() const { return unwanted_; }
  // Notes that a push asks for the key to go uncompressed after this step.
  void NoteUncompressed() { asks_uncompressed_ = true; }
  bool asks_uncompressed() const { return asks_uncompressed_; }

  // BeginHold notes that a contribution was taken, which is held until the round has all of them.
  // EndHold then counts, for each, how long it was held and, unless `waits` is null, how long after
  // the round's first push it arrived. EndHold counts nothing if BeginHold was never called.
  void BeginHold(const StageSpan& span, Rank rank, uint64_t bytes) {
    if (held_.empty()) held_.reserve(roster_size_);
    held_.push_back({span, bytes, rank});
  }
  void EndHold(RankWaits* waits) {
    for (const Held& held : held_) {
      held.span.End(Stage::kHold, held.bytes);
      if (waits != nullptr) waits->Add(held.rank, held.span.NsAfter(held_.front().span));
    }
    held_.clear();
  }

  // Returns whether a rank has contributed to the open round.
  bool Has(Rank rank) const {
    return is_open() && (rank < next_ || waiting_.find(rank) != waiting_.end());
  }
  bool IsComplete() const { return is_open() && static_cast<size_t>(next_) == roster_size_; }
  // Returns the lowest rank that has contributed, or -1.
  Rank FirstRank() const {
    if (next_ > 0) return 0;
    return waiting_.empty() ? -1 : waiting_.begin()->first;
  }
  // Returns the lowest rank that has not contributed: the one whose turn it is. REQUIRES:
  // !IsComplete().
  Rank FirstMissing() const { return next_; }
  // Returns the learning rate, which all contributions share. REQUIRES: there is a contribution.
  float learning_rate() const { return learning_rate_; }
  // Returns the program's position as the lowest rank that knows it has told it.
  const ProgramPlace& program_place() const { return program_place_; }
  // Returns the ranks that have not contributed, rising: those among the kMostRanksTold ranks from
  // FirstMissing() on, and `asker` if it is one. Costs the same however many workers there are.
  std::vector<Rank> MissingRanks(Rank asker) const;

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
  };

  void Take(const PrefixSum::Context& context, Contribution contribution);
  // Drops the payloads: a round that is not finite has no use for them.
  void DropPayloads();

  Step step_ = 0;
  size_t roster_size_ = 0;
  Rank next_ = 0;  // contributions of the ranks below are added
  float learning_rate_ = 0;
  ProgramPlace program_place_;
  bool has_nonfinite_ = false;  // of any contribution, added or waiting
  bool is_all_absent_ = true;   // of the added contributions, as the next two
  double total_weight_ = 0;
  PrefixSum sum_;
  absl::btree_map<Rank, Contribution> waiting_;  // contributions that wait for lower ranks'
  size_t waiting_bytes_ = 0;
  std::vector<Rank> unwanted_;  // in the order of arrival
  bool asks_uncompressed_ = false;
  std::vector<Held> held_;
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_ROUND_H_
