#ifndef BANDONEON_SCHEDULER_DECLARATION_BATCH_H_
#define BANDONEON_SCHEDULER_DECLARATION_BATCH_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/cluster/catalogue.h"
#include "scheduler/barrier.h"

namespace bdn {

// The n-th declaration of every worker, gathered and compared: they must name the same tensors, in
// any order, and say the same of each. Not thread-safe.
class DeclarationBatch {
 public:
  explicit DeclarationBatch(int num_workers) : came_(num_workers) {}

  // `who` declares `tensors`, whose names differ. InvalidArgument names two workers, the tensor and
  // what differs; the batch is then of no more use. REQUIRES: `rank` has not been added.
  absl::Status Add(Rank rank, std::vector<TensorDeclaration> tensors);

  bool Has(Rank rank) const { return lists_.count(rank) > 0; }
  bool full() const { return came_.full(); }
  std::string Missing() const { return came_.Missing(); }
  // REQUIRES: Has(rank).
  const std::vector<TensorDeclaration>& Of(Rank rank) const { return lists_.at(rank); }

 private:
  Barrier came_;
  std::map<Rank, std::vector<TensorDeclaration>> lists_;
};

// "elements=10, push=none": what `mine` says where it differs from `other`; empty where they agree.
std::string DescribeDifference(const TensorDeclaration& mine, const TensorDeclaration& other);

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_DECLARATION_BATCH_H_
