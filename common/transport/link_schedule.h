#ifndef BANDONEON_COMMON_TRANSPORT_LINK_SCHEDULE_H_
#define BANDONEON_COMMON_TRANSPORT_LINK_SCHEDULE_H_

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace bdn {

// One direction of a link of a fixed rate: computes when the frames that share it get through. Time
// is an argument and must not go back. Not thread-safe.
class LinkSchedule {
 public:
  // REQUIRES: bytes_per_second > 0.
  explicit LinkSchedule(double bytes_per_second) : bytes_per_second_(bytes_per_second) {}

  // Returns when the last byte of a frame handed over at `now` has left, behind all frames that
  // came before it.
  absl::Time Depart(absl::Time now, uint64_t bytes) {
    free_at_ = std::max(now, free_at_) + Duration(bytes);
    return free_at_;
  }

  // Returns when a frame whose last byte reached our end at `now` is in. The frame flowed in while
  // its sender's link let it out, so on a link that was idle the answer is `now`: frames are cut
  // through, not stored.
  absl::Time Arrive(absl::Time now, uint64_t bytes) {
    free_at_ = std::max(now, free_at_ + Duration(bytes));
    return free_at_;
  }

 private:
  absl::Duration Duration(uint64_t bytes) const {
    return absl::Seconds(static_cast<double>(bytes) / bytes_per_second_);
  }

  const double bytes_per_second_;
  absl::Time free_at_ = absl::InfinitePast();
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_LINK_SCHEDULE_H_
