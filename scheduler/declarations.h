#ifndef BANDONEON_SCHEDULER_DECLARATIONS_H_
#define BANDONEON_SCHEDULER_DECLARATIONS_H_

#include <cstdint>
#include <functional>
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

// The declarations of a job's workers, on their way to keys that every server has installed. It
// gathers the n-th declarations of the workers of a group, or of all, into batches, has the planner
// cut and the placer place the new tensors, and keeps which placement each server has acknowledged.
// The cost of a declaration is that of its tensors, not of those declared before. Not thread-safe.
class Declarations {
 public:
  // The sums over everything declared, without retired tensors.
  struct Totals {
    uint64_t tensors = 0;
    uint64_t tensor_bytes = 0;  // as TensorBytes
    uint64_t server_bytes = 0;  // as ServerBytes
    uint64_t keys = 0;
  };

  explicit Declarations(const JobOptions& options);

  // Takes the membership, once all nodes have joined. To be called once, before anything is
  // declared.
  void Begin(std::shared_ptr<const Membership> membership);
  // Takes a later membership. Declarations wait for its servers only; one that is new has
  // installed nothing. Where it has none, they wait until it has.
  void OnMembership(std::shared_ptr<const Membership> membership);

  // Returns whether this is the member's last declaration again, which its number tells.
  bool IsRepeated(const RosterMember& member, const DeclarationPart& part) const;
  // Returns how that declaration ended, if the member was told so before.
  std::optional<absl::StatusOr<DeclarationAnswer>> LastAnswerOf(const RosterMember& member) const;
  // Puts a part of the member's next declaration into the batch of that, and returns the batch's
  // number. The same declaration again, before its answer, is the same one. Aborted: the member is
  // leaving. InvalidArgument, ResourceExhausted or FailedPrecondition: this call changed nothing.
  // An error in a list, or a difference between workers, fails the batch instead.
  absl::StatusOr<uint64_t> Declare(const RosterMember& member, DeclarationPart part);
  // Returns the answer to this worker about the batch: how it ended, or that its list is wanted.
  // Nothing while it has to wait.
  std::optional<absl::StatusOr<DeclarationAnswer>> AnswerOf(uint64_t batch,
                                                            const RosterMember& member) const;
  // Takes a part of a declaration of a late worker: a candidate, or one that was taken in. Its
  // whole list is wanted, and each tensor that the job has declared under the same name is answered
  // from the record: with the placement that includes the last of them, if that is all. The rest
  // of a worker that was taken in is its part in the batch of all: `*part` becomes that, for
  // Declare, and nothing is returned, as of any other worker. InvalidArgument: a tensor differs
  // from what the job has declared; NotFound: a candidate's is unknown. Then nothing has changed.
  std::optional<absl::StatusOr<DeclarationAnswer>> DeclareLate(const RosterMember& member,
                                                               bool is_candidate,
                                                               DeclarationPart* part);
  // Takes a candidate in: declarations wait for it from now on, and so do those retired tensors
  // that it has declared.
  void Admit(const RosterMember& member);
  // Forgets a candidate.
  void ForgetCandidate(NodeId node) {
    latest_.erase(node);
    late_.erase(node);
  }
  // Notes that the member was told how the batch ended: its next declaration belongs to the next
  // batch.
  void MarkAnswered(uint64_t batch, const RosterMember& member);
  // Returns the batches of which workers besides the last caller may have something to be told.
  std::set<uint64_t> TakeChanged() { return std::exchange(changed_, {}); }
  // Returns "waiting for worker 1 to declare the same tensors".
  std::string WaitedFor(uint64_t batch) const;

  // Notes that a server has installed its keys of this placement. InvalidArgument: the node is no
  // server, or there is no such placement yet.
  absl::Status Acknowledge(NodeId server, PlacementVersion version);
  // Returns the error that Acknowledge would return.
  absl::Status CheckAcknowledges(NodeId server, PlacementVersion version) const;
  // Returns whether the server has said so already, or of a later placement.
  bool IsAcknowledged(NodeId server, PlacementVersion version) const;
  // Returns whether Retire would change anything.
  bool RetiresAny(const RosterMember& member, const std::vector<uint32_t>& tensors) const;
  // Notes that the member is done with these tensors, by number. Tensors with which all members
  // that are not leaving are done are removed: a new version of the catalogue says so, and their
  // names may be declared anew. InvalidArgument, after which nothing has changed: there is no such
  // tensor yet.
  absl::Status Retire(const RosterMember& member, const std::vector<uint32_t>& tensors);
  // Notes that this worker is leaving: fails the batches that wait for it to declare, also those
  // that begin later. The worker counts as done with all tensors.
  void OnLeaving(const RosterMember& member);
  // Goes on without this member: its batches, and the tensors with which all others are done, wait
  // for it no more. REQUIRES: some member is left.
  void OnLost(const RosterMember& member);
  // Forgets all batches, because the job has failed.
  void Abandon() { batches_.clear(); }

  // The latest placement. Its epoch is that in which its version was added.
  PlacementVersion version() const { return version_; }
  // The number of batches whose end some worker has still to be told.
  size_t num_batches() const { return batches_.size(); }
  // The additions of each version, from version 1. A delta is emptied once all its tensors are
  // retired and all workers have read it.
  const std::vector<SharedDelta>& deltas() const { return deltas_; }
  const Totals& totals() const { return totals_; }
  Placer::Load LoadOf(NodeId server) const;

 private:
  // One declaration of the workers of a group.
  struct Batch {
    Batch(const RankGroup& of, const Roster& expected, DeclarationBatch::Check check)
        : ranks(of), declared(expected, std::move(check)), answered(expected) {}
    RankGroup ranks;
    DeclarationBatch declared;
    Barrier answered;                         // workers that know how it ended
    std::optional<PlacementVersion> version;  // once planned: the first placement that includes it
  };

  // A worker's last declaration, by its own account, and the answer that it was given.
  struct Latest {
    absl::flat_hash_map<RankGroup, uint64_t> next;  // by group: how many declarations have ended
    uint64_t batch = 0;                             // of this declaration
    uint64_t number = 0;
    std::string digest;
    uint32_t count = 0;
    std::optional<absl::StatusOr<DeclarationAnswer>> answer;
  };

  // A tensor that is not retired.
  struct Tensor {
    const TensorDeclaration* declaration = nullptr;  // lies in its delta
    uint32_t version = 0;                            // the version of the catalogue that added it
  };

  // A worker that has joined the job that runs, and its declaration that is under way.
  struct Late {
    RosterMember member;       // once it was taken in
    std::set<uint32_t> has;    // of a candidate: the tensors that it has declared
    std::set<uint32_t> lacks;  // once taken in: those of before that it has not declared
    std::string digest;        // of its list, by its own account, as `count`
    uint32_t count = 0;
    // The list so far; in a batch the rest, without what the record has answered.
    std::vector<TensorDeclaration> list;
    bool is_in_batch = false;
  };

  // The workers that are done with a tensor; those that are leaving, and late ones that have never
  // had it, are done with all.
  struct Done {
    void Add(const RosterMember& member);
    void Remove(const RosterMember& member);
    std::vector<bool> by_rank;
    size_t count = 0;
  };

  // Returns whether the batch has failed or was planned.
  static bool HasEnded(const Batch& batch) {
    return !batch.declared.failure().ok() || batch.version.has_value();
  }
  absl::Status CheckCount(const RosterMember& member, const DeclarationPart& part) const;
  // Checks that the member may declare among these ranks.
  absl::Status CheckRanks(const RosterMember& member, const RankGroup& ranks) const;
  // Checks one declaration by itself.
  absl::Status CheckOne(const RosterMember& member, const TensorDeclaration& tensor) const;

  // Calls `visit` with each member of a group that is in the roster, by rank, until it returns
  // false. Costs as much as the group has ranks.
  void VisitAmong(const RankGroup& ranks,
                  const std::function<bool(const RosterMember&)>& visit) const;
  // Return these members, and how many they are.
  Roster RosterAmong(const RankGroup& ranks) const;
  size_t CountAmong(const RankGroup& ranks) const;
  const RankGroup& RanksOf(uint32_t tensor) const { return tensors_.at(tensor).declaration->ranks; }
  // Returns the number of the batch of a group's n-th declaration.
  uint64_t BatchNumber(const RankGroup& ranks, uint64_t n);
  // Returns the open batch, another than `at`, in which the member has declared last and waits.
  std::optional<uint64_t> WaitsElsewhere(const RosterMember& member, uint64_t at) const;
  // Fails the batches of workers that wait for each other because each declares in another group
  // first: those that this batch is among.
  void FailCircle(uint64_t number);

  // ---- workers that join later: late_declarations.cc

  // Makes of a part of a late worker, whose declaration is in a batch, the same one again.
  // FailedPrecondition: it is another one.
  absl::Status RepeatLate(const RosterMember& member, DeclarationPart* part, Late* late) const;
  // Adds a part to the list of a late worker. InvalidArgument as DeclarationBatch::Add, or for a
  // tensor that is wrong by itself.
  absl::Status AddLate(const RosterMember& member, DeclarationPart* part, Late* late) const;
  // Returns the tensor of this name that the record has for a late worker; null: none.
  const Tensor* FindForLate(const RosterMember& member, bool is_candidate,
                            const std::string& name) const;
  // Returns whether the member was taken in after the tensor was declared, and has not declared it
  // since.
  bool HasNeverHad(const RosterMember& member, uint32_t number) const;
  // Returns whether a late worker that was taken in declares this tensor when it declares its name,
  // and not the one that all are going to declare anew.
  bool IsKnownTo(const RosterMember& member, uint32_t number) const;
  // Divides a late worker's whole list: returns the answer of the record, and puts the tensors that
  // are not there into `rest`.
  absl::StatusOr<DeclarationAnswer> AnswerByName(const RosterMember& member, bool is_candidate,
                                                 const std::vector<TensorDeclaration>& list,
                                                 std::vector<TensorDeclaration>* rest);
  // Gives a batch the lists of late workers that it wants.
  void GiveLateLists(uint64_t number, DeclarationBatch* batch);
  // Returns the batch of the next declaration of a worker that is taken in now.
  uint64_t NextOfAll(const RankGroup& ranks) const;

  // Returns the batch, made where it is new.
  Batch* BatchOf(const RosterMember& member, const RankGroup& ranks, uint64_t number);
  // Fails a batch that waits for a member that is leaving.
  void FailWithout(uint64_t number, Batch* batch, const RosterMember& member);
  // Checks a list against the limits and against what is declared already.
  absl::Status Check(const RosterMember& member,
                     const std::vector<TensorDeclaration>& tensors) const;
  // Checks the limits. `fresh` are new tensors, and `replaced` those that will be retired by then.
  absl::Status CheckRoom(const std::vector<const TensorDeclaration*>& fresh,
                         const std::vector<const TensorDeclaration*>& replaced) const;
  // Returns the failure; where it names a tensor with which only some workers are done, it says
  // which, and what to do.
  absl::Status WithAdvice(absl::Status failure) const;
  // Cuts and places the new tensors of a full batch, and publishes them.
  absl::Status Plan(Batch* batch);
  // Plans a batch if everybody has declared in it.
  void PlanIfFull(Batch* batch);
  // Notes that a member is done with a tensor. REQUIRES: the tensor is not retired.
  void MarkDone(uint32_t number, const RosterMember& member);
  void RetireWhatIsDeclaredAnew(const std::vector<TensorDeclaration>& tensors);
  // Removes those of the tensors with which all workers are done.
  void RemoveRetired(const std::vector<uint32_t>& tensors);
  // Publishes a delta as the next version.
  void Publish(std::shared_ptr<CatalogueDelta> delta);
  // Returns the latest placement that all servers have installed; nothing where there is no server.
  std::optional<PlacementVersion> InstalledEverywhere() const;
  // Notes that batches may have ended, because others have to install them or have done so.
  void CheckPlanned();

  const JobConfig config_;
  const DeclarationLimits limits_;
  std::shared_ptr<const Membership> membership_;  // the latest; null until Begin
  Roster roster_;
  Roster leaving_;
  size_t num_ranks_ = 0;         // of workers, vacant ones too
  bool shares_workers_ = false;  // several processes push through some worker

  PlacementVersion version_;
  std::vector<SharedDelta> deltas_;
  Totals totals_;
  uint32_t next_tensor_ = 0;                       // the number of the next new tensor
  absl::flat_hash_map<uint32_t, Tensor> tensors_;  // by number
  // By name; the views point into deltas_.
  absl::flat_hash_map<std::string_view, uint32_t> numbers_;
  // For each version, by its index in deltas_: the number of its tensors that a worker may still
  // ask for.
  std::vector<size_t> tensors_left_;
  // Tensors with which some workers are done, and others are not.
  std::map<uint32_t, Done> done_with_;
  std::optional<Placer> placer_;                        // set by Begin
  std::map<NodeId, PlacementVersion> installed_;        // by server that is present
  std::multiset<PlacementVersion> installed_versions_;  // the values of installed_, sorted

  std::map<uint64_t, Batch> batches_;
  // By group, in the order of their first declarations: the number of the group, which is the upper
  // half of its batches' numbers. All workers are a group from the beginning.
  absl::flat_hash_map<RankGroup, uint64_t> groups_ = {{RankGroup(), 0}};
  std::set<uint64_t> changed_;
  std::map<NodeId, Latest> latest_;  // by worker
  const bool may_join_later_;        // vacant ranks may be taken
  std::map<NodeId, Late> late_;
  // The last retired tensor of each name, only where workers may join later; the views point into
  // deltas_.
  absl::flat_hash_map<std::string_view, Tensor> retired_;
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_DECLARATIONS_H_
