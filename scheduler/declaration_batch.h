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

// The n-th declarations of all workers of a roster, gathered and compared: they must name the same
// tensors, in any order, and say the same of each. A batch keeps one list, that of the lowest rank,
// and a digest of each other worker's. Workers whose digest differs are asked for their list one
// after the other, so that the error can name the difference. Not thread-safe.
class DeclarationBatch {
 public:
  // A check of one list by itself.
  using Check =
      std::function<absl::Status(const RosterMember&, const std::vector<TensorDeclaration>&)>;

  // REQUIRES: `expected` is not empty.
  DeclarationBatch(Roster expected, Check check)
      : first_(*expected.begin()), check_(std::move(check)), arrived_(std::move(expected)) {}

  // Adds a part of a member's declaration; a part that begins at 0 starts the list anew.
  // FailedPrecondition: the member declared something else before. InvalidArgument: the part does
  // not follow those before. After either nothing has changed. REQUIRES: `member` is expected.
  absl::Status Add(const RosterMember& member, DeclarationPart part);
  // Expects a member more, which was taken in after the others had begun. REQUIRES: the batch has
  // not ended.
  void Expect(const RosterMember& member) { arrived_.Expect(member); }
  // Expects a member no more, because the job goes on without it. Where the list was still to come
  // from it, the lowest rank of those that are left gives the list. REQUIRES: `left` is not empty.
  void Remove(const RosterMember& member, const Roster& left);
  // Returns why the batch failed, or OK. A failed batch is of no more use. InvalidArgument names
  // two workers, the tensor and the difference; or it is the error of the check of a list.
  const absl::Status& failure() const { return failure_; }
  void Fail(absl::Status failure) { failure_ = std::move(failure); }

  // Returns the position from which on the member's list is wanted; nothing where it is not wanted.
  // REQUIRES: the member has said something.
  std::optional<uint32_t> WantedFrom(const RosterMember& member) const;
  // Returns the member whose list is wanted because its digest differs.
  const std::optional<RosterMember>& asked() const { return asked_; }
  // Returns whether the member is to declare here, or has done so.
  bool Expects(const RosterMember& member) const { return arrived_.Expects(member); }
  // Returns whether the member has sent all that is needed of it.
  bool Has(const RosterMember& member) const { return arrived_.Has(member); }
  bool full() const { return arrived_.full(); }
  const Roster& missing() const { return arrived_.missing(); }
  std::string Missing() const { return arrived_.Missing(); }

  // Returns the list of the lowest rank, whose order is the catalogue's. REQUIRES: full(). To be
  // called once.
  std::vector<TensorDeclaration> TakeTensors() { return std::move(said_.at(first_).tensors); }

 private:
  // The declaration of one member, as far as it has come.
  struct Said {
    std::string digest;
    uint32_t count = 0;
    std::vector<TensorDeclaration> tensors;  // the list so far; only where it is wanted
  };

  bool Wants(const RosterMember& member) const;
  // Handles a list that is complete.
  void OnList(const RosterMember& member, Said* said);
  void CompareDigest(const RosterMember& member, const Said& said);
  // Asks the next member whose digest differs for its list.
  void AskNext();
  absl::Status CompareLists(const RosterMember& member, const Said& said) const;

  RosterMember first_;  // gives the list
  const Check check_;
  bool has_list_ = false;  // all of the list of first_ has come
  std::map<RosterMember, Said> said_;
  std::set<RosterMember> differing_;
  std::optional<RosterMember> asked_;  // one of differing_
  Barrier arrived_;
  absl::Status failure_;
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_DECLARATION_BATCH_H_
