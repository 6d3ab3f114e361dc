#ifndef BANDONEON_SCHEDULER_DECLARATION_BATCH_H_
#define BANDONEON_SCHEDULER_DECLARATION_BATCH_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/cluster/declaration_list.h"
#include "scheduler/barrier.h"
#include "scheduler/roster.h"

namespace bdn {

// The n-th declaration of every worker of a roster, gathered and compared: they must name the same
// tensors, in any order, and say the same of each. It keeps one list, that of the lowest rank, and a
// digest of each other worker's. Of those whose digest differs one after the other is asked for its
// list, so that what differs can be named. Not thread-safe.
class DeclarationBatch {
 public:
  // What is checked of a list alone.
  using Check =
      std::function<absl::Status(const RosterMember&, const std::vector<TensorDeclaration>&)>;

  // REQUIRES: somebody is expected.
  DeclarationBatch(Roster expected, Check check)
      : first_(*expected.begin()), check_(std::move(check)), arrived_(std::move(expected)) {}

  // `member` says a part of its declaration; a part from the beginning begins anew. FailedPrecondition:
  // it said something else before. InvalidArgument: the part does not follow those before. After
  // either nothing has changed. REQUIRES: `member` is expected.
  absl::Status Add(const RosterMember& member, DeclarationPart part);
  // Once it is not OK the batch is of no more use. InvalidArgument names two workers, the tensor and
  // what differs; or it is what the check said of a list.
  const absl::Status& failure() const { return failure_; }
  void Fail(absl::Status failure) { failure_ = std::move(failure); }

  // The member's list is wanted from this place on.
  std::optional<uint32_t> WantedFrom(const RosterMember& member) const;
  // Whose list is wanted because its digest differs.
  const std::optional<RosterMember>& asked() const { return asked_; }
  // Whether it has said what is needed of it.
  bool Has(const RosterMember& member) const { return arrived_.Has(member); }
  bool full() const { return arrived_.full(); }
  std::string Missing() const { return arrived_.Missing(); }

  // The list of the lowest rank, whose order is the catalogue's. REQUIRES: full(). Once.
  std::vector<TensorDeclaration> TakeTensors() { return std::move(said_.at(first_).tensors); }

 private:
  struct Said {
    std::string digest;
    uint32_t count = 0;
    std::vector<TensorDeclaration> tensors;  // so far; only where they are wanted
  };

  bool Wants(const RosterMember& member) const;
  void OnList(const RosterMember& member, Said* said);
  void CompareDigest(const RosterMember& member, const Said& said);
  void AskNext();
  absl::Status CompareLists(const RosterMember& member, const Said& said) const;

  const RosterMember first_;
  const Check check_;
  bool has_list_ = false;  // the first's, all of it
  std::map<RosterMember, Said> said_;
  std::set<RosterMember> differing_;
  std::optional<RosterMember> asked_;  // one of these
  Barrier arrived_;
  absl::Status failure_;
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_DECLARATION_BATCH_H_
