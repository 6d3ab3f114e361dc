#ifndef BANDONEON_SCHEDULER_DECLARATION_BATCH_H_
#define BANDONEON_SCHEDULER_DECLARATION_BATCH_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/cluster/catalogue.h"
#include "scheduler/barrier.h"
#include "scheduler/roster.h"

namespace bdn {

// The n-th declaration of every worker of a roster, gathered and compared: they must name the same
// tensors, in any order, and say the same of each. Not thread-safe.
class DeclarationBatch {
 public:
  explicit DeclarationBatch(Roster expected) : arrived_(std::move(expected)) {}

  // `member` declares `tensors`, whose names differ. InvalidArgument names two workers, the tensor
  // and what differs; the batch is then of no more use. REQUIRES: `member` is expected and has not
  // been added.
  absl::Status Add(const RosterMember& member, std::vector<TensorDeclaration> tensors);

  bool Has(const RosterMember& member) const { return lists_.count(member) > 0; }
  bool full() const { return arrived_.full(); }
  // Aborted where one of `leaving` has not declared.
  absl::Status CheckMayFill(const Roster& leaving) const {
    return arrived_.CheckMayFill(leaving, "declaring tensors");
  }
  std::string Missing() const { return arrived_.Missing(); }
  // REQUIRES: Has(member).
  const std::vector<TensorDeclaration>& Of(const RosterMember& member) const {
    return lists_.at(member);
  }
  // The list of the lowest rank, whose order is the catalogue's. REQUIRES: full().
  const std::vector<TensorDeclaration>& tensors() const { return lists_.begin()->second; }

 private:
  Barrier arrived_;
  std::map<RosterMember, std::vector<TensorDeclaration>> lists_;
};

// "elements=10, push=none": what `mine` says where it differs from `other`; empty where they agree.
std::string DescribeDifference(const TensorDeclaration& mine, const TensorDeclaration& other);

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_DECLARATION_BATCH_H_
