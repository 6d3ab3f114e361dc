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

// What one worker gave to a round.
struct Contribution {
  enum class Kind : uint8_t { kAbsent, kNonFinite, kPayload };
  Kind kind = Kind::kAbsent;
  float weight = 0;
  float learning_rate = 0;
  uint32_t program_steps = 0;  // as FrameHeader has it
  Buffer payload;              // still encoded; validated at receipt
};

// An open step of one key. Contributions are added in rank order: those of ranks 0, 1, ... as far
// as they have come, the others when those before them have. Each call costs the same however many
// workers there are, and where pushes come in rank order so does what is held. A value; not
// thread-safe.
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

  // Takes a contribution of the open step. REQUIRES: 0 <= rank < roster_size(), !Has(rank), the
  // learning rate is that of all others, and so is the program's place, where it is known.
  void Add(const KeyPlan& plan, BufferPool* pool, Rank rank, Contribution contribution);

  // This rank, which contributes to the open step, does without its result.
  void NoteUnwanted(Rank rank) { unwanted_.push_back(rank); }
  const std::vector<Rank>& unwanted() const { return unwanted_; }
  // Somebody asks for the key to go uncompressed after this step.
  void NoteUncompressed() { asks_uncompressed_ = true; }
  bool asks_uncompressed() const { return asks_uncompressed_; }

  // A contribution was taken: until the round has all of them it is held, which EndHold counts of
  // each, with how long it was waited for, unless `waits` is null. Without the first the second counts nothing.
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

  // Whether a rank is in the open round.
  bool Has(Rank rank) const {
    return is_open() && (rank < next_ || waiting_.find(rank) != waiting_.end());
  }
  bool IsComplete() const { return is_open() && static_cast<size_t>(next_) == roster_size_; }
  // The lowest rank that has contributed, or -1.
  Rank FirstRank() const {
    if (next_ > 0) return 0;
    return waiting_.empty() ? -1 : waiting_.begin()->first;
  }
  // The lowest rank that has not: the one whose turn it is. REQUIRES: !IsComplete().
  Rank FirstMissing() const { return next_; }
  // Of everybody who has contributed. REQUIRES: somebody has.
  float learning_rate() const { return learning_rate_; }
  // Of the lowest rank that knows it.
  const ProgramPlace& program_place() const { return program_place_; }
  // Who has not contributed, rising: of the kMostRanksTold ranks from FirstMissing() on, and `asker`
  // if it is one. Costs the same however many workers there are.
  std::vector<Rank> MissingRanks(Rank asker) const;

  // Of all contributions. REQUIRES: IsComplete.
  bool has_nonfinite() const { return has_nonfinite_; }
  bool is_all_absent() const { return is_all_absent_; }
  double total_weight() const { return total_weight_; }  // absent ones count
  PrefixSum& sum() { return sum_; }                      // of the payloads, unless has_nonfinite

  // What is held: payloads, and what they were added up to.
  size_t payload_bytes() const { return waiting_bytes_ + sum_.payload_bytes(); }
  size_t sum_bytes() const { return sum_.sum_bytes(); }

 private:
  struct Held {
    StageSpan span;
    uint64_t bytes;
    Rank rank;
  };

  void Take(const PrefixSum::Context& context, Contribution contribution);
  // Nobody needs the payloads of a round that is not finite.
  void DropPayloads();

  Step step_ = 0;
  size_t roster_size_ = 0;
  Rank next_ = 0;  // those below are added
  float learning_rate_ = 0;
  ProgramPlace program_place_;
  bool has_nonfinite_ = false;  // of any rank
  bool is_all_absent_ = true;   // of those that are added, as the next two
  double total_weight_ = 0;
  PrefixSum sum_;
  absl::btree_map<Rank, Contribution> waiting_;  // for those before them
  size_t waiting_bytes_ = 0;
  std::vector<Rank> unwanted_;  // as they came
  bool asks_uncompressed_ = false;
  std::vector<Held> held_;
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_ROUND_H_
