#include "scheduler/membership_table.h"

#include <algorithm>

#include "common/base/status.h"

namespace bdn {

MembershipTable::MembershipTable(int num_workers, int num_servers, absl::Duration lease_timeout)
    : num_workers_(num_workers), num_servers_(num_servers), lease_timeout_(lease_timeout) {}

std::string MembershipTable::Describe(const NodeInfo& node) {
  return absl::StrFormat("%s %d (node %d, %s)", RoleName(node.role), node.rank, node.id, node.host);
}

absl::StatusOr<NodeId> MembershipTable::Add(const JoinRequest& request, absl::Time now) {
  if (request.role != Role::kWorker && request.role != Role::kServer) {
    return InvalidArgument("only workers and servers join");
  }
  const char* role = RoleName(request.role);
  const int expected = ExpectedOf(request.role);
  if (request.wanted_rank < -1 || request.wanted_rank >= expected) {
    return InvalidArgument("%s rank %d: this job has %d %s(s), ranks 0 to %d", role,
                           request.wanted_rank, expected, role, expected - 1);
  }
  for (const auto& [id, member] : members_) {
    if (request.wanted_rank >= 0 && member.info.role == request.role &&
        member.info.rank == request.wanted_rank) {
      return AlreadyExists("%s rank %d is taken by node %d (%s)", role, request.wanted_rank, id,
                           member.info.host);
    }
  }
  for (const auto& [id, member] : members_) {
    if (!request.public_key.empty() && member.info.public_key == request.public_key) {
      return AlreadyExists("%s joined with the public key of node %d (%s)", request.host, id,
                           member.info.host);
    }
  }
  if (CountOf(request.role) >= expected) {
    return ResourceExhausted("all %d %s(s) of this job have joined already", expected, role);
  }
  const NodeId id = next_id_++;
  Member& member = members_[id];
  member.info = {.id = id,
                 .role = request.role,
                 .rank = request.wanted_rank,
                 .data_address = request.data_address,
                 .host = request.host,
                 .public_key = request.public_key,
                 .data_security = request.data_security};
  member.last_heard = now;
  return id;
}

void MembershipTable::Remove(NodeId node) { members_.erase(node); }

int MembershipTable::CountOf(Role role) const {
  return static_cast<int>(std::count_if(members_.begin(), members_.end(), [&](const auto& entry) {
    return entry.second.info.role == role;
  }));
}

bool MembershipTable::full() const {
  return CountOf(Role::kWorker) == num_workers_ && CountOf(Role::kServer) == num_servers_;
}

std::vector<Rank> MembershipTable::FreeRanks(Role role) const {
  std::vector<bool> taken(static_cast<size_t>(ExpectedOf(role)), false);
  for (const auto& [id, member] : members_) {
    if (member.info.role == role && member.info.rank >= 0) {
      taken[static_cast<size_t>(member.info.rank)] = true;
    }
  }
  std::vector<Rank> ranks;
  for (size_t rank = 0; rank < taken.size(); ++rank) {
    if (!taken[rank]) ranks.push_back(static_cast<Rank>(rank));
  }
  return ranks;
}

std::string MembershipTable::Missing() const {
  std::string names;
  for (const Role role : {Role::kWorker, Role::kServer}) {
    // Those who take any rank will have the lowest free ones.
    const std::vector<Rank> ranks = FreeRanks(role);
    const auto missing = static_cast<size_t>(ExpectedOf(role) - CountOf(role));
    for (size_t i = ranks.size() - missing; i < ranks.size(); ++i) {
      names += absl::StrFormat("%s%s rank %d", names.empty() ? "" : ", ", RoleName(role), ranks[i]);
    }
  }
  return absl::StrFormat("%s (%d of %d have joined)", names, members_.size(),
                         num_workers_ + num_servers_);
}

void MembershipTable::Freeze(absl::Time now) {
  auto membership = std::make_shared<Membership>();
  membership->epoch = 1;
  for (const Role role : {Role::kWorker, Role::kServer}) {
    std::vector<Rank> free = FreeRanks(role);
    std::vector<NodeInfo>& nodes =
        role == Role::kWorker ? membership->workers : membership->servers;
    nodes.resize(static_cast<size_t>(ExpectedOf(role)));
    for (auto& [id, member] : members_) {
      if (member.info.role != role) continue;
      if (member.info.rank < 0) {
        member.info.rank = free.front();
        free.erase(free.begin());
      }
      nodes[static_cast<size_t>(member.info.rank)] = member.info;
    }
  }
  membership_ = std::move(membership);
  for (const auto& entry : members_) Heard(entry.first, now);
}

void MembershipTable::Heard(NodeId node, absl::Time now) {
  const auto found = members_.find(node);
  if (found == members_.end()) return;
  found->second.last_heard = now;
  if (frozen()) found->second.lease_end = now + lease_timeout_;
}

void MembershipTable::Report(NodeId node, const NodeProgress& progress) {
  const auto found = members_.find(node);
  if (found != members_.end()) found->second.progress = progress;
}

void MembershipTable::ShortenLease(NodeId node, absl::Time end) {
  const auto found = members_.find(node);
  if (found != members_.end() && frozen()) {
    found->second.lease_end = std::min(found->second.lease_end, end);
  }
}

void MembershipTable::MarkLeft(NodeId node) {
  const auto found = members_.find(node);
  if (found != members_.end()) found->second.left = true;
}

const MembershipTable::Member* MembershipTable::Expired(absl::Time now) const {
  for (const auto& [id, member] : members_) {
    if (!member.left && member.lease_end <= now) return &member;
  }
  return nullptr;
}

absl::Time MembershipTable::NextExpiry() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, member] : members_) {
    if (!member.left) next = std::min(next, member.lease_end);
  }
  return next;
}

const MembershipTable::Member* MembershipTable::Find(NodeId node) const {
  const auto found = members_.find(node);
  return found == members_.end() ? nullptr : &found->second;
}

bool MembershipTable::all_left() const {
  return std::all_of(members_.begin(), members_.end(),
                     [](const auto& entry) { return entry.second.left; });
}

}  // namespace bdn
