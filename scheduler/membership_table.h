#ifndef BANDONEON_SCHEDULER_MEMBERSHIP_TABLE_H_
#define BANDONEON_SCHEDULER_MEMBERSHIP_TABLE_H_

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/cluster/control_plane.h"
#include "common/cluster/membership.h"
#include "scheduler/slot_mover.h"

namespace bdn {

// The table of the nodes of a job: it gathers nodes until all with which the job begins have
// joined, then freezes the roster, numbers it epoch 1 and holds a lease for each node. Nodes may
// then be taken out, and servers may join in the place of others; with each the next epoch begins.
// Not thread-safe; time is an argument.
class MembershipTable {
 public:
  // One node, and what was heard of it.
  struct Member {
    NodeInfo info;  // the rank is -1 until the freeze where any rank would do
    absl::Time last_heard;
    absl::Time lease_end = absl::InfiniteFuture();
    bool left = false;
    absl::Status evicted;       // not OK: the job goes on without it, for this reason (IsEvicted)
    uint64_t join_id = 0;       // of its JoinRequest
    bool has_called = false;    // a heartbeat of it has come, so it has the answer to its join
    bool is_candidate = false;  // a worker that waits to be taken in: not in the membership yet
    NodeProgress progress;

    bool is_here() const { return !left && evicted.ok(); }
  };

  // The job begins with the workers of the ranks below `first_workers`; the other ranks are vacant
  // then. REQUIRES: 1 <= first_workers <= num_workers and num_servers >= 1.
  MembershipTable(int num_workers, int first_workers, int num_servers,
                  absl::Duration lease_timeout);

  // Returns whether the job may not begin with this node: it is a worker of another rank than those
  // with which it begins, or these have all joined. REQUIRES: not frozen.
  bool ComesLater(const JoinRequest& request) const;

  // Adds a node. REQUIRES: not frozen, and not ComesLater(request). Errors: InvalidArgument for a
  // rank or role that the job does not have, or a server with more than one process; AlreadyExists
  // names the holder of the rank or of the public key; ResourceExhausted where the role is full.
  absl::StatusOr<NodeId> Add(const JoinRequest& request, absl::Time now);
  // Forgets a node that gave up joining. REQUIRES: not frozen.
  void Remove(NodeId node);

  bool full() const {
    return workers_.joined == workers_.first && servers_.joined == servers_.first;
  }
  bool frozen() const { return membership_ != nullptr; }
  // Returns "worker rank 1, server rank 0 (2 of 4 have joined)".
  std::string Missing() const;

  // Gives the free ranks to nodes that take any rank, in the order of ComesBefore, so that the same
  // nodes get the same ranks in whatever order they join; and starts the leases. REQUIRES: full().
  void Freeze(absl::Time now);
  // Takes over the table of another scheduler as it was at its Freeze. REQUIRES: no node was added;
  // the membership has as many nodes as the job begins with.
  void Restore(std::shared_ptr<const Membership> membership,
               const std::map<NodeId, uint64_t>& join_ids, absl::Time now);
  // Null before Freeze.
  std::shared_ptr<const Membership> membership() const { return membership_; }

  // Returns the numbers of processes, by rank; a rank that nobody has had yet has as many as rank
  // 0. Empty before Freeze.
  std::vector<int> ProcessesOfWorkers() const;

  // Gives all nodes that are here a whole lease.
  void RenewLeases(absl::Time now);
  // Renews the node's lease.
  void Heard(NodeId node, absl::Time now);
  void Report(NodeId node, const NodeProgress& progress);
  // Ends the lease at `end` at the latest, unless the node is heard again.
  void ShortenLease(NodeId node, absl::Time end);
  // Ends all leases so much later, because no node could be heard for that time.
  void LengthenLeases(absl::Duration by);
  void MarkLeft(NodeId node);
  // Takes all nodes that have left for such as are here.
  void TakeBackLeft();
  // Takes a worker out of the membership, whose epoch rises; its rank is vacant from then on.
  // REQUIRES: frozen(); the worker is here; `why` satisfies IsEvicted.
  void Evict(NodeId worker, absl::Status why);
  // Takes a server out likewise; its slots move to the others. `homes` are the bytes of Homes().
  void EvictServer(NodeId server, absl::Status why, const HomeBytes& homes);
  // Returns the servers of the Freeze: the homes of keys, whatever has become of them.
  const std::vector<NodeId>& Homes() const { return homes_; }

  // Returns the rank that a server gets that joins now: the one that it wants, else the lowest
  // vacant one; -1 where that is taken, or none is vacant. REQUIRES: frozen().
  Rank VacantServerRank(Rank wanted) const;
  // Returns the error that Admit would have for this server, whatever its rank.
  absl::Status CheckAdmits(const JoinRequest& request) const;
  // Returns the node that a server, or a candidate, is to be.
  NodeInfo MakeNode(const JoinRequest& request, Rank rank) const;
  // Takes a server in, with which the next epoch begins. It gets the slots for which nobody
  // answers. REQUIRES: CanAdmit(server).
  void Admit(const NodeInfo& server, uint64_t join_id, absl::Time now);
  // Does the same and EvictServer(lost, why) in one epoch, in which the newcomer has the slots of
  // the server that is lost. REQUIRES: that is here and has the same rank.
  void Replace(NodeId lost, absl::Status why, const HomeBytes& homes, const NodeInfo& server,
               uint64_t join_id, absl::Time now);
  // Returns whether the node is a new one, and a server of a rank that is vacant, or would be
  // without the server `lost`. A node that MakeNode made for such a rank is one.
  bool CanAdmit(const NodeInfo& server, uint64_t join_id, NodeId lost = 0) const;

  // Returns the vacant rank that a worker would get that joins now: the one that it wants, else the
  // lowest, of those that no candidate has; -1 where there is none. REQUIRES: frozen().
  Rank VacantWorkerRank(Rank wanted) const;
  // Checks that a worker of this rank may have so many processes. InvalidArgument names both
  // numbers.
  absl::Status CheckCandidate(const JoinRequest& request, Rank rank) const;
  // Returns whether the node is a new one, and a worker of a rank that is vacant and no
  // candidate's, with the processes of that rank. A node that MakeNode made for such a rank is one.
  bool CanAddCandidate(const NodeInfo& worker, uint64_t join_id) const;
  // Adds a candidate, which has a lease and is in no membership. REQUIRES: CanAddCandidate.
  void AddCandidate(const NodeInfo& worker, uint64_t join_id, absl::Time now);
  // Returns whether there was a node of this id that is forgotten: a candidate.
  bool WasForgotten(NodeId node) const {
    return frozen() && node > 0 && node < next_id_ && !members_.contains(node);
  }
  // Forgets a candidate. REQUIRES: the node is one.
  void ForgetCandidate(NodeId worker);
  // Takes candidates into the membership, whose epoch rises. REQUIRES: `workers` is not empty, and
  // its nodes are candidates.
  void AdmitCandidates(const std::vector<NodeId>& workers, absl::Time now);

  // Returns the node whose lease ended first, or null where none has ended.
  const Member* Expired(absl::Time now) const;
  absl::Time NextExpiry() const;

  // Returns the ranks of workers that were lost and are vacant, rising. REQUIRES: frozen().
  std::set<Rank> LostRanks() const;

  // Returns the node that joined with that number, which is not 0; null where none has.
  const Member* FindByJoinId(uint64_t join_id) const;
  // Returns null for an unknown id.
  const Member* Find(NodeId node) const;
  const std::map<NodeId, Member>& members() const { return members_; }
  // Returns whether no node is here any more.
  bool all_left() const { return num_gone_ + num_candidates_ == members_.size(); }

  // Returns "worker 1 (node 5, host:pid)".
  static std::string Describe(const NodeInfo& node);

 private:
  // The nodes of one role.
  struct Nodes {
    int expected = 0;  // its ranks
    int first = 0;     // the job begins with so many, of the lowest ranks
    int joined = 0;
    std::map<Rank, NodeId> wanted;  // nodes that want a certain rank
  };

  Nodes& Of(Role role) { return role == Role::kWorker ? workers_ : servers_; }
  const Nodes& Of(Role role) const { return role == Role::kWorker ? workers_ : servers_; }
  std::vector<Rank> FreeRanks(Role role) const;
  void FindHomes();
  absl::Status CheckRank(const JoinRequest& request) const;
  absl::Status CheckPublicKey(const JoinRequest& request) const;
  static absl::Status CheckProcesses(const JoinRequest& request);
  void SetLeaseEnd(Member* member, absl::Time end);
  // Marks a member as taken out.
  void MarkEvicted(Member* member, absl::Status why);
  // Adds a node to the members.
  Member& AddMember(const NodeInfo& node, uint64_t join_id);
  // Returns whether a node with this number, key and join_id may be added now.
  bool IsNew(const NodeInfo& node, uint64_t join_id) const;
  // Adds a server to the members and to the membership that is being made.
  void AddServer(const NodeInfo& server, uint64_t join_id, absl::Time now, Membership* next);
  // Returns a copy of the membership, as the next epoch.
  std::shared_ptr<Membership> NextEpoch() const;
  void Begin(std::shared_ptr<Membership> next);
  // Gives out the free ranks of a role, and returns its nodes by rank.
  std::vector<NodeInfo> GiveRanks(Role role);

  const absl::Duration lease_timeout_;
  Nodes workers_;
  Nodes servers_;
  NodeId next_id_ = 1;
  std::map<NodeId, Member> members_;           // by node id, which is the order of joining
  std::map<PublicKey, NodeId> by_public_key_;  // of nodes that have one
  std::map<uint64_t, NodeId> by_join_id_;      // of nodes that have one
  size_t num_gone_ = 0;                        // nodes that are not here any more
  size_t num_candidates_ = 0;
  // Ends of the leases of nodes that are here.
  std::set<std::pair<absl::Time, NodeId>> leases_;
  std::shared_ptr<const Membership> membership_;
  std::vector<NodeId> homes_;  // rising
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_MEMBERSHIP_TABLE_H_
