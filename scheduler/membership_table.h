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

namespace bdn {

// Who is in the job: gathers nodes until all nodes have joined, then freezes the roster, numbers it
// epoch 1 and holds a lease for each node. Not thread-safe; time is an argument.
class MembershipTable {
 public:
  struct Member {
    NodeInfo info;  // the rank is -1 until the freeze where any would do
    absl::Time last_heard;
    absl::Time lease_end = absl::InfiniteFuture();
    bool left = false;
    NodeProgress progress;
  };

  // REQUIRES: num_workers >= 1 and num_servers >= 1.
  MembershipTable(int num_workers, int num_servers, absl::Duration lease_timeout);

  // A new node. REQUIRES: not frozen. Errors: InvalidArgument for a rank or role that the job does
  // not have; AlreadyExists names the holder of the rank or of
  // the public key; ResourceExhausted where the role is full.
  absl::StatusOr<NodeId> Add(const JoinRequest& request, absl::Time now);
  // Forgets a node that went away. REQUIRES: not frozen.
  void Remove(NodeId node);

  bool full() const {
    return workers_.joined == workers_.expected && servers_.joined == servers_.expected;
  }
  bool frozen() const { return membership_ != nullptr; }
  // "worker rank 1, server rank 0 (2 of 4 have joined)".
  std::string Missing() const;

  // Gives the free ranks to those who took any, in the order of ComesBefore, so that the same nodes
  // have the same ranks whenever they come; and starts the leases. REQUIRES: full().
  void Freeze(absl::Time now);
  // Null before Freeze.
  std::shared_ptr<const Membership> membership() const { return membership_; }

  // By rank. Empty before Freeze.
  std::vector<int> ProcessesOfWorkers() const;

  void Heard(NodeId node, absl::Time now);
  void Report(NodeId node, const NodeProgress& progress);
  // The lease ends at `end` at the latest, unless the node is heard again.
  void ShortenLease(NodeId node, absl::Time end);
  // All leases end so much later: nobody could be heard for so long.
  void LengthenLeases(absl::Duration by);
  void MarkLeft(NodeId node);

  // The node whose lease ended first, or null where none has.
  const Member* Expired(absl::Time now) const;
  absl::Time NextExpiry() const;

  // Null for an unknown id.
  const Member* Find(NodeId node) const;
  const std::map<NodeId, Member>& members() const { return members_; }
  bool all_left() const { return num_left_ == members_.size(); }

  // "worker 1 (node 5, host:pid)".
  static std::string Describe(const NodeInfo& node);

 private:
  // The nodes of one role.
  struct Nodes {
    int expected = 0;
    int joined = 0;
    std::map<Rank, NodeId> wanted;  // by rank
  };

  Nodes& Of(Role role) { return role == Role::kWorker ? workers_ : servers_; }
  const Nodes& Of(Role role) const { return role == Role::kWorker ? workers_ : servers_; }
  std::vector<Rank> FreeRanks(Role role) const;
  void SetLeaseEnd(Member* member, absl::Time end);
  std::vector<NodeInfo> GiveRanks(Role role);

  const absl::Duration lease_timeout_;
  Nodes workers_;
  Nodes servers_;
  NodeId next_id_ = 1;
  std::map<NodeId, Member> members_;           // by the order of coming
  std::map<PublicKey, NodeId> by_public_key_;  // of those who have one
  size_t num_left_ = 0;
  std::set<std::pair<absl::Time, NodeId>> leases_;  // when they end; of those who have not left
  std::shared_ptr<const Membership> membership_;
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_MEMBERSHIP_TABLE_H_
