#include "scheduler/barrier.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace bdn {

bool Barrier::full() const {
  return std::all_of(present_.begin(), present_.end(), [](bool here) { return here; });
}

bool Barrier::empty() const {
  return std::none_of(present_.begin(), present_.end(), [](bool here) { return here; });
}

std::vector<Rank> Barrier::Present() const {
  std::vector<Rank> ranks;
  for (size_t rank = 0; rank < present_.size(); ++rank) {
    if (present_[rank]) ranks.push_back(static_cast<Rank>(rank));
  }
  return ranks;
}

std::string Barrier::Missing() const {
  std::string names;
  for (size_t rank = 0; rank < present_.size(); ++rank) {
    if (present_[rank]) continue;
    names += absl::StrFormat("%sworker %d", names.empty() ? "" : ", ", rank);
  }
  return names;
}

}  // namespace bdn
