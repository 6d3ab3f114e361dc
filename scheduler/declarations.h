#ifndef BANDONEON_SCHEDULER_DECLARATIONS_H_
#define BANDONEON_SCHEDULER_DECLARATIONS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cluster/control_plane.h"
#include "common/cluster/declaration_list.h"
#include "scheduler/barrier.h"
#include "scheduler/declaration_batch.h"
#include "scheduler/job_options.h"
#include "scheduler/placer.h"
#include "scheduler/roster.h"

namespace bdn {

// What the workers of a job declare, on its way to keys that every server has installed: gathers
// the n-th declarations of all workers into batches, has the planner cut and the placer place what
// is new, and keeps which placement each server has acknowledged. A declaration costs what it says,
// not what was declared before. Not thread-safe.
class Declarations {
 public:
  // What all of it has come to, without what is retired.
  struct Totals {
    uint64_t tensors = 0;
    uint64_t tensor_bytes = 0;  // as TensorBytes
    uint64_t server_bytes = 0;  // as ServerBytes
    uint64_t keys = 0;
  };

  explicit Declarations(const JobOptions& options);

  // All nodes have joined. Once, before anything is declared.
  void Begin(std::shared_ptr<const Membership> membership);

  // Whether `member` has said that before, in its last declaration; its number says so.
  bool IsRepeated(const RosterMember& member, const DeclarationPart& part) const;
  // How that one ended, if `member` was told so before.
  std::optional<absl::StatusOr<DeclarationAnswer>> LastAnswerOf(const RosterMember& member) const;
  // Puts what `member` says of its next declaration into that one's batch and returns the number of
  // the batch. The same again, before the answer, is the same declaration. Aborted: it is leaving. InvalidArgument,
  // ResourceExhausted or FailedPrecondition: this call changed nothing. What is wrong with a list, or
  // between workers, fails the batch instead.
  absl::StatusOr<uint64_t> Declare(const RosterMember& member, DeclarationPart part);
  // What this worker is to be told of the batch: how it ended, or that its list is wanted. Nothing
  // while it is waited for.
  std::optional<absl::StatusOr<DeclarationAnswer>> AnswerOf(uint64_t batch,
                                                            const RosterMember& member) const;
  // `member` was told how the batch ended: its next declaration is of the next one.
  void MarkAnswered(uint64_t batch, const RosterMember& member);
  // The batches of which somebody besides the last caller may have something to be told.
  std::set<uint64_t> TakeChanged() { return std::exchange(changed_, {}); }
  // "waiting for worker 1 to declare the same tensors".
  std::string WaitedFor(uint64_t batch) const;

  // A server has installed its keys of this placement. InvalidArgument: it is no server, or there
  // is no such placement yet.
  absl::Status Acknowledge(NodeId server, PlacementVersion version);
  // `member` is done with these tensors, by number. Those that all others who are not leaving are done with
  // are no more: a new version of the catalogue says so, and their names may be declared anew.
  // InvalidArgument, and nothing has changed: there is no such tensor yet.
  absl::Status Retire(const RosterMember& member, const std::vector<uint32_t>& tensors);
  // Fails what waits for this worker to declare, who will not; also what begins later. It is done with all
  // tensors.
  void OnLeaving(const RosterMember& member);
  // Forgets what is waited for: the job has failed.
  void Abandon() { batches_.clear(); }

  // The latest.
  PlacementVersion version() const { return version_; }
  // Batches of which somebody is still to be told how they ended.
  size_t num_batches() const { return batches_.size(); }
  // What each version added, from version 1. Empty where all of it is retired and all have read it.
  const std::vector<SharedDelta>& deltas() const { return deltas_; }
  const Totals& totals() const { return totals_; }
  Placer::Load LoadOf(NodeId server) const;

 private:
  // One declaration of all workers.
  struct Batch {
    Batch(const Roster& expected, DeclarationBatch::Check check)
        : declared(expected, std::move(check)), answered(expected) {}
    DeclarationBatch declared;
    Barrier answered;                         // workers that know how it ended
    std::optional<PlacementVersion> version;  // once planned: the first placement that has it
  };

  // A worker's last declaration, by its own account, and what it was told of it.
  struct Latest {
    uint64_t next_batch = 0;  // of its next declaration
    uint64_t number = 0;
    std::string digest;
    uint32_t count = 0;
    std::optional<absl::StatusOr<DeclarationAnswer>> answer;
  };

  // A tensor that is not retired.
  struct Tensor {
    const TensorDeclaration* declaration = nullptr;  // in its delta
    uint32_t version = 0;                            // of the catalogue, which added it
  };

  // Workers that are done with a tensor; those that are leaving are done with all.
  struct Done {
    void Add(const RosterMember& member);
    std::vector<bool> by_rank;
    size_t count = 0;
  };

  Batch* BatchOf(const RosterMember& member, uint64_t number);
  void FailWithout(uint64_t number, Batch* batch, const RosterMember& member);
  absl::Status Check(const RosterMember& member,
                     const std::vector<TensorDeclaration>& tensors) const;
  // `fresh` are new, and those of `replaced` will be retired by then.
  absl::Status CheckRoom(const std::vector<const TensorDeclaration*>& fresh,
                         const std::vector<const TensorDeclaration*>& replaced) const;
  // The failure; where it names a tensor that only some are done with, it says who, and what to do.
  absl::Status WithAdvice(absl::Status failure) const;
  absl::Status Plan(Batch* batch);
  // REQUIRES: the tensor is not retired.
  void MarkDone(uint32_t number, const RosterMember& member);
  void RetireWhatIsDeclaredAnew(const std::vector<TensorDeclaration>& tensors);
  // Those of the tensors that everybody is done with are no more.
  void RemoveRetired(const std::vector<uint32_t>& tensors);
  // As the next version.
  void Publish(std::shared_ptr<CatalogueDelta> delta);
  // What all servers have installed.
  PlacementVersion InstalledEverywhere() const { return *installed_versions_.begin(); }

  const JobConfig config_;
  const DeclarationLimits limits_;
  std::shared_ptr<const Membership> membership_;  // null until Begin
  Roster roster_;
  Roster leaving_;

  PlacementVersion version_;
  std::vector<SharedDelta> deltas_;
  Totals totals_;
  uint32_t next_tensor_ = 0;                                 // number
  absl::flat_hash_map<uint32_t, Tensor> tensors_;            // by number
  absl::flat_hash_map<std::string_view, uint32_t> numbers_;  // of these, by name
  // Of each version, by its place in deltas_: tensors that somebody may still ask for.
  std::vector<size_t> tensors_left_;
  std::map<uint32_t, Done> done_with_;  // tensors that some are done with, and others are not
  std::optional<Placer> placer_;        // from Begin
  std::map<NodeId, PlacementVersion> installed_;        // by server
  std::multiset<PlacementVersion> installed_versions_;  // the same, by version

  std::map<uint64_t, Batch> batches_;
  std::set<uint64_t> changed_;
  std::map<NodeId, Latest> latest_;  // by worker
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_DECLARATIONS_H_
