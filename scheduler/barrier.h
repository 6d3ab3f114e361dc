#ifndef BANDONEON_SCHEDULER_BARRIER_H_
#define BANDONEON_SCHEDULER_BARRIER_H_

#include <string>
#include <vector>

#include "common/base/ids.h"

namespace bdn {

// Who of the workers has come to one place. Not thread-safe.
class Barrier {
 public:
  explicit Barrier(int num_workers) : present_(static_cast<size_t>(num_workers), false) {}

  // Coming twice is coming once. REQUIRES: 0 <= rank < num_workers.
  void Arrive(Rank rank) { present_[static_cast<size_t>(rank)] = true; }
  void Withdraw(Rank rank) { present_[static_cast<size_t>(rank)] = false; }

  bool Has(Rank rank) const { return present_[static_cast<size_t>(rank)]; }
  bool full() const;
  bool empty() const;
  std::vector<Rank> Present() const;
  // "worker 1, worker 3"; empty where nobody is missing.
  std::string Missing() const;

 private:
  std::vector<bool> present_;
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_BARRIER_H_
