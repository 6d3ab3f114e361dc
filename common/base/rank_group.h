#ifndef BANDONEON_COMMON_BASE_RANK_GROUP_H_
#define BANDONEON_COMMON_BASE_RANK_GROUP_H_

#include <algorithm>
#include <compare>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"

namespace bdn {

// The workers that exchange something among themselves, by rank: all workers of the job, unless it
// was made of a list. A rank stays in its group whoever has it: workers that are lost leave gaps,
// and those that take their ranks take their places. Copies share the list, which is never changed;
// they may be used by any thread.
class RankGroup {
 public:
  RankGroup() = default;  // all workers
  // Returns the group of these ranks, in any order. InvalidArgument: there is none, or a rank is
  // negative or there twice.
  static absl::StatusOr<RankGroup> Of(std::vector<Rank> ranks);
  // Reads the text of ToString. InvalidArgument: it is none.
  static absl::StatusOr<RankGroup> Parse(std::string_view text);

  bool is_all() const { return ranks_ == nullptr; }
  bool Has(Rank rank) const { return is_all() || std::ranges::binary_search(*ranks_, rank); }
  // Return its ranks, rising, and the greatest of them. REQUIRES: !is_all().
  const std::vector<Rank>& ranks() const { return *ranks_; }
  Rank last() const { return ranks_->back(); }

  // Returns "ranks 0-3, 8, 16-64/8", in which the last is every eighth; "all ranks".
  std::string ToString() const;

  // Compare by content: all workers come first, then groups by their ranks.
  friend bool operator==(const RankGroup& a, const RankGroup& b) {
    return a.ranks_ == b.ranks_ || (!a.is_all() && !b.is_all() && *a.ranks_ == *b.ranks_);
  }
  friend std::strong_ordering operator<=>(const RankGroup& a, const RankGroup& b) {
    if (a.ranks_ == b.ranks_) return std::strong_ordering::equal;
    if (a.is_all() || b.is_all()) return b.is_all() <=> a.is_all();
    return *a.ranks_ <=> *b.ranks_;
  }
  template <typename H>
  friend H AbslHashValue(H h, const RankGroup& group) {
    return group.is_all() ? H::combine(std::move(h), 0) : H::combine(std::move(h), *group.ranks_);
  }

 private:
  explicit RankGroup(std::vector<Rank> ranks)
      : ranks_(std::make_shared<const std::vector<Rank>>(std::move(ranks))) {}

  std::shared_ptr<const std::vector<Rank>> ranks_;  // rising; null: all workers
};

// Returns a name that only a group uses: "NAME among ranks 0-3"; of all workers the name itself.
std::string NameAmong(std::string_view name, const RankGroup& group);
// Returns the group that such a name tells; all workers where it tells none.
RankGroup GroupInName(std::string_view name);

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_RANK_GROUP_H_
