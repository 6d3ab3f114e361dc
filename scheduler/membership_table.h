#ifndef BANDONEON_SCHEDULER_MEMBERSHIP_TABLE_H_
#define BANDONEON_SCHEDULER_MEMBERSHIP_TABLE_H_

#include <map>
#include <memory>
#include <string>
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

  bool full() const;
  bool frozen() const { return membership_ != nullptr; }
  // "worker rank 1, server rank 0 (2 of 4 have joined)".
  std::string Missing() const;

  // Gives ranks to those who took any, in the order they came, and starts the leases.
  // REQUIRES: full().
  void Freeze(absl::Time now);
  // Null before Freeze.
  std::shared_ptr<const Membership> membership() const { return membership_; }

  void Heard(NodeId node, absl::Time now);
  void Report(NodeId node, const NodeProgress& progress);
  // The lease ends at `end` at the latest, unless the node is heard again.
  void ShortenLease(NodeId node, absl::Time end);
  void MarkLeft(NodeId node);

  // The first node whose lease has ended, or null.
  const Member* Expired(absl::Time now) const;
  absl::Time NextExpiry() const;

  // Null for an unknown id.
  const Member* Find(NodeId node) const;
  const std::map<NodeId, Member>& members() const { return members_; }
  bool all_left() const;

  // "worker 1 (node 5, host:pid)".
  static std::string Describe(const NodeInfo& node);

 private:
  int ExpectedOf(Role role) const { return role == Role::kWorker ? num_workers_ : num_servers_; }
  int CountOf(Role role) const;
  std::vector<Rank> FreeRanks(Role role) const;

  const int num_workers_;
  const int num_servers_;
  const absl::Duration lease_timeout_;
  NodeId next_id_ = 1;
  std::map<NodeId, Member> members_;  // by the order of coming
  std::shared_ptr<const Membership> membership_;
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_MEMBERSHIP_TABLE_H_
