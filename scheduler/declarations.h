#ifndef BANDONEON_SCHEDULER_DECLARATIONS_H_
#define BANDONEON_SCHEDULER_DECLARATIONS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cluster/control_plane.h"
#include "scheduler/barrier.h"
#include "scheduler/declaration_batch.h"
#include "scheduler/roster.h"

namespace bdn {

// What the workers of a job declare, on its way to keys that every server has installed: gathers
// the n-th declarations of all workers into batches, has the planner cut and the placer place what
// is new, and keeps which placement each server has acknowledged. Not thread-safe.
class Declarations {
 public:
  explicit Declarations(const JobConfig& config);

  // All nodes have joined. Once, before anything is declared.
  void Begin(std::shared_ptr<const Membership> membership);

  // Puts what `member` declares into the batch of its next declaration and returns the number of
  // that batch. The same again, before the answer, is the same declaration. InvalidArgument,
  // ResourceExhausted or FailedPrecondition names the tensor or the worker: this call is then of no
  // batch. What is wrong between workers fails the batch instead.
  absl::StatusOr<uint64_t> Declare(const RosterMember& member,
                                   std::vector<TensorDeclaration> tensors);
  // How the batch ended, for each of its workers; nothing while it is waited for.
  std::optional<absl::Status> AnswerOf(uint64_t batch) const;
  // `member` was given the answer: its next declaration is of the next batch.
  void MarkAnswered(uint64_t batch, const RosterMember& member);
  // "waiting for worker 1 to declare the same tensors".
  std::string WaitedFor(uint64_t batch) const;

  // A server has installed its keys of this placement. InvalidArgument: it is no server, or there
  // is no such placement yet.
  absl::Status Acknowledge(NodeId server, PlacementVersion version);
  // Fails what waits for one of these to declare, who will not.
  void AbortWaitsFor(const Roster& leaving);
  // Forgets what is waited for: the job has failed.
  void Abandon() { batches_.clear(); }

  const std::shared_ptr<const Catalogue>& catalogue() const { return catalogue_; }
  // Of that catalogue.
  const std::shared_ptr<const PlacementTable>& placement() const { return placement_; }

 private:
  // One declaration of all workers.
  struct Batch {
    explicit Batch(const Roster& expected) : declared(expected), answered(expected) {}
    DeclarationBatch declared;
    Barrier answered;  // workers that know how it ended
    absl::Status failure;
    bool planned = false;
    PlacementVersion version;  // once planned: the first placement that has it
  };

  absl::Status Check(Rank rank, const std::vector<TensorDeclaration>& tensors) const;
  absl::Status Plan(Batch* batch);
  // What all servers have installed.
  PlacementVersion InstalledEverywhere() const;

  const JobConfig config_;
  std::shared_ptr<const Membership> membership_;  // null until Begin
  Roster roster_;

  std::shared_ptr<const Catalogue> catalogue_;
  std::shared_ptr<const PlacementTable> placement_;
  std::unordered_map<std::string, size_t> tensor_index_;  // in catalogue_->tensors
  std::map<NodeId, PlacementVersion> installed_;          // by server

  std::map<uint64_t, Batch> batches_;
  std::map<NodeId, uint64_t> next_batch_;  // the batch of a worker's next declaration
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_DECLARATIONS_H_
