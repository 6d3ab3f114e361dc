#include "scheduler/membership_table.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "common/base/status.h"
#include "scheduler/host_order.h"

namespace bdn {

MembershipTable::MembershipTable(int num_workers, int first_workers, int num_servers,
                                 absl::Duration lease_timeout)
    : lease_timeout_(lease_timeout),
      workers_{.expected = num_workers, .first = first_workers},
      servers_{.expected = num_servers, .first = num_servers} {}

std::string MembershipTable::Describe(const NodeInfo& node) {
  return absl::StrFormat("%s %d (node %d, %s)", RoleName(node.role), node.rank, node.id, node.host);
}

absl::Status MembershipTable::CheckRank(const JoinRequest& request) const {
  const char* role = RoleName(request.role);
  const int expected = Of(request.role).expected;
  if (request.wanted_rank >= -1 && request.wanted_rank < expected) return absl::OkStatus();
  return InvalidArgument("%s rank %d: this job has %d %s(s), ranks 0 to %d", role,
                         request.wanted_rank, expected, role, expected - 1);
}

absl::Status MembershipTable::CheckPublicKey(const JoinRequest& request) const {
  const auto holder = by_public_key_.find(request.public_key);
  if (holder == by_public_key_.end()) return absl::OkStatus();
  return AlreadyExists("%s joined with the public key of node %d (%s)", request.host,
                       holder->second, members_.at(holder->second).info.host);
}

absl::Status MembershipTable::CheckProcesses(const JoinRequest& request) {
  if (request.role != Role::kServer || request.processes == 1) return absl::OkStatus();
  return InvalidArgument("%s joined as a server with %d processes", request.host,
                         request.processes);
}

bool MembershipTable::ComesLater(const JoinRequest& request) const {
  if (request.role != Role::kWorker || workers_.first == workers_.expected) return false;
  return request.wanted_rank >= workers_.first ||
         (workers_.joined == workers_.first && !workers_.wanted.contains(request.wanted_rank));
}

absl::StatusOr<NodeId> MembershipTable::Add(const JoinRequest& request, absl::Time now) {
  if (request.role != Role::kWorker && request.role != Role::kServer) {
    return InvalidArgument("only workers and servers join");
  }
  BDN_RETURN_IF_ERROR(CheckRank(request));
  const char* role = RoleName(request.role);
  Nodes& nodes = Of(request.role);
  // A taken rank or key comes first: it is the better reason where the role is also full.
  if (const auto holder = nodes.wanted.find(request.wanted_rank); holder != nodes.wanted.end()) {
    return AlreadyExists("%s rank %d is taken by node %d (%s)", role, request.wanted_rank,
                         holder->second, members_.at(holder->second).info.host);
  }
  BDN_RETURN_IF_ERROR(CheckPublicKey(request));
  if (nodes.joined >= nodes.first) {
    return ResourceExhausted("all %d %s(s) of this job have joined already", nodes.first, role);
  }
  BDN_RETURN_IF_ERROR(CheckProcesses(request));
  const NodeId id = next_id_++;
  ++nodes.joined;
  if (request.wanted_rank >= 0) nodes.wanted[request.wanted_rank] = id;
  if (!request.public_key.empty()) by_public_key_[request.public_key] = id;
  Member& member = members_[id];
  member.info = {.id = id,
                 .role = request.role,
                 .rank = request.wanted_rank,
                 .endpoints = request.endpoints,
                 .host = request.host,
                 .public_key = request.public_key,
                 .processes = request.processes};
  member.last_heard = now;
  member.join_id = request.join_id;
  if (request.join_id != 0) by_join_id_[request.join_id] = id;
  return id;
}

void MembershipTable::Remove(NodeId node) {
  const auto found = members_.find(node);
  if (found == members_.end()) return;
  Nodes& nodes = Of(found->second.info.role);
  --nodes.joined;
  nodes.wanted.erase(found->second.info.rank);
  by_public_key_.erase(found->second.info.public_key);
  by_join_id_.erase(found->second.join_id);
  members_.erase(found);
}

std::vector<Rank> MembershipTable::FreeRanks(Role role) const {
  const Nodes& nodes = Of(role);
  std::vector<Rank> ranks;
  for (Rank rank = 0; rank < nodes.first; ++rank) {
    if (nodes.wanted.count(rank) == 0) ranks.push_back(rank);
  }
  return ranks;
}

std::string MembershipTable::Missing() const {
  constexpr size_t kMostNames = 8;
  std::string names;
  size_t more = 0;
  size_t named = 0;
  for (const Role role : {Role::kWorker, Role::kServer}) {
    // Nodes that take any rank will get some of the free ones. As many ranks as nodes are missing;
    // the last of the free ones are named.
    const std::vector<Rank> ranks = FreeRanks(role);
    const auto missing = static_cast<size_t>(Of(role).first - Of(role).joined);
    for (size_t i = ranks.size() - missing; i < ranks.size(); ++i) {
      if (named == kMostNames) {
        more += ranks.size() - i;
        break;
      }
      names += absl::StrFormat("%s%s rank %d", names.empty() ? "" : ", ", RoleName(role), ranks[i]);
      ++named;
    }
  }
  if (more > 0) names += absl::StrFormat(" and %d more", more);
  return absl::StrFormat("%s (%d of %d have joined)", names, members_.size(),
                         workers_.first + servers_.first);
}

void MembershipTable::Freeze(absl::Time now) {
  auto membership = std::make_shared<Membership>();
  membership->epoch = 1;
  membership->workers = GiveRanks(Role::kWorker);
  membership->servers = GiveRanks(Role::kServer);
  for (Rank rank = workers_.first; rank < workers_.expected; ++rank) {
    membership->vacant.push_back(rank);
  }
  membership->MakeIndex();
  membership_ = std::move(membership);
  FindHomes();
  // The leases begin at the freeze: before it a node only waits, and sends no heartbeats.
  RenewLeases(now);
}

void MembershipTable::Restore(std::shared_ptr<const Membership> membership,
                              const std::map<NodeId, uint64_t>& join_ids, absl::Time now) {
  membership_ = std::move(membership);
  for (const std::vector<NodeInfo>* nodes : {&membership_->workers, &membership_->servers}) {
    for (const NodeInfo& node : *nodes) {
      Member& member = members_[node.id];
      member.info = node;
      ++Of(node.role).joined;
      next_id_ = std::max(next_id_, node.id + 1);
      if (const auto found = join_ids.find(node.id); found != join_ids.end()) {
        member.join_id = found->second;
        by_join_id_[found->second] = node.id;
      }
      if (!node.public_key.empty()) by_public_key_[node.public_key] = node.id;
    }
  }
  FindHomes();
  RenewLeases(now);
}

void MembershipTable::FindHomes() {
  for (const NodeInfo& server : membership_->servers) homes_.push_back(server.id);
  std::sort(homes_.begin(), homes_.end());
}

std::vector<NodeInfo> MembershipTable::GiveRanks(Role role) {
  std::vector<NodeInfo*> any;
  for (auto& [id, member] : members_) {
    if (member.info.role == role && member.info.rank < 0) any.push_back(&member.info);
  }
  std::sort(any.begin(), any.end(),
            [](const NodeInfo* a, const NodeInfo* b) { return ComesBefore(*a, *b); });
  const std::vector<Rank> free = FreeRanks(role);
  for (size_t i = 0; i < any.size(); ++i) any[i]->rank = free[i];
  std::vector<NodeInfo> nodes(static_cast<size_t>(Of(role).first));
  for (const auto& [id, member] : members_) {
    if (member.info.role == role) nodes[static_cast<size_t>(member.info.rank)] = member.info;
  }
  return nodes;
}

std::vector<int> MembershipTable::ProcessesOfWorkers() const {
  std::vector<int> processes;
  if (!frozen()) return processes;
  processes.resize(static_cast<size_t>(workers_.expected));
  for (const auto& [id, member] : members_) {
    if (member.info.role != Role::kWorker || member.is_candidate) continue;
    processes[static_cast<size_t>(member.info.rank)] = member.info.processes;
  }
  std::ranges::replace(processes, 0, processes[0]);
  return processes;
}

void MembershipTable::SetLeaseEnd(Member* member, absl::Time end) {
  leases_.erase({member->lease_end, member->info.id});
  member->lease_end = end;
  // A node that is gone has no lease, but may be heard once more.
  if (member->is_here()) leases_.insert({end, member->info.id});
}

void MembershipTable::RenewLeases(absl::Time now) {
  for (const auto& entry : members_) Heard(entry.first, now);
}

void MembershipTable::Heard(NodeId node, absl::Time now) {
  const auto found = members_.find(node);
  if (found == members_.end()) return;
  found->second.last_heard = now;
  if (frozen()) SetLeaseEnd(&found->second, now + lease_timeout_);
}

void MembershipTable::Report(NodeId node, const NodeProgress& progress) {
  const auto found = members_.find(node);
  if (found == members_.end()) return;
  found->second.progress.Update(progress);
  found->second.has_called = true;
}

void MembershipTable::ShortenLease(NodeId node, absl::Time end) {
  const auto found = members_.find(node);
  if (found != members_.end() && frozen()) {
    SetLeaseEnd(&found->second, std::min(found->second.lease_end, end));
  }
}

void MembershipTable::LengthenLeases(absl::Duration by) {
  if (!frozen()) return;
  for (auto& [id, member] : members_) SetLeaseEnd(&member, member.lease_end + by);
}

void MembershipTable::MarkLeft(NodeId node) {
  const auto found = members_.find(node);
  if (found == members_.end() || !found->second.is_here()) return;
  found->second.left = true;
  ++num_gone_;
  leases_.erase({found->second.lease_end, node});
}

void MembershipTable::TakeBackLeft() {
  for (auto& [id, member] : members_) {
    if (!member.left) continue;
    member.left = false;
    --num_gone_;
  }
}

std::shared_ptr<Membership> MembershipTable::NextEpoch() const {
  auto next = std::make_shared<Membership>(*membership_);
  ++next->epoch;
  return next;
}

void MembershipTable::Begin(std::shared_ptr<Membership> next) {
  next->MakeIndex();
  membership_ = std::move(next);
}

void MembershipTable::MarkEvicted(Member* member, absl::Status why) {
  member->evicted = std::move(why);
  ++num_gone_;
  leases_.erase({member->lease_end, member->info.id});
}

void MembershipTable::Evict(NodeId worker, absl::Status why) {
  Member& member = members_.at(worker);
  MarkEvicted(&member, std::move(why));
  auto next = NextEpoch();
  std::erase_if(next->workers, [worker](const NodeInfo& node) { return node.id == worker; });
  next->vacant.insert(std::ranges::upper_bound(next->vacant, member.info.rank), member.info.rank);
  next->unsafe = next->epoch;
  Begin(std::move(next));
}

void MembershipTable::EvictServer(NodeId server, absl::Status why, const HomeBytes& homes) {
  MarkEvicted(&members_.at(server), std::move(why));
  auto next = NextEpoch();
  std::erase_if(next->servers, [server](const NodeInfo& node) { return node.id == server; });
  MoveSlots(server, homes, next.get());
  Begin(std::move(next));
}

Rank MembershipTable::VacantServerRank(Rank wanted) const {
  Rank lowest = 0;
  for (const NodeInfo& server : membership_->servers) {
    if (server.rank == wanted) return -1;
    if (server.rank == lowest) ++lowest;
  }
  if (wanted >= 0) return wanted;
  return lowest < servers_.expected ? lowest : -1;
}

absl::Status MembershipTable::CheckAdmits(const JoinRequest& request) const {
  BDN_RETURN_IF_ERROR(CheckRank(request));
  BDN_RETURN_IF_ERROR(CheckPublicKey(request));
  return CheckProcesses(request);
}

NodeInfo MembershipTable::MakeNode(const JoinRequest& request, Rank rank) const {
  return {.id = next_id_,
          .role = request.role,
          .rank = rank,
          .endpoints = request.endpoints,
          .host = request.host,
          .public_key = request.public_key,
          .processes = request.processes};
}

bool MembershipTable::IsNew(const NodeInfo& node, uint64_t join_id) const {
  // The ids after it must not overflow.
  if (node.id < next_id_ || node.id == std::numeric_limits<NodeId>::max()) return false;
  if (join_id != 0 && by_join_id_.contains(join_id)) return false;
  return !by_public_key_.contains(node.public_key);
}

bool MembershipTable::CanAdmit(const NodeInfo& server, uint64_t join_id, NodeId lost) const {
  if (!frozen() || server.role != Role::kServer || server.processes != 1) return false;
  if (!IsNew(server, join_id)) return false;
  if (server.rank < 0 || server.rank >= servers_.expected) return false;
  if (lost == 0) return VacantServerRank(server.rank) == server.rank;
  const Member* const before = Find(lost);
  return before != nullptr && before->is_here() && before->info.role == Role::kServer &&
         before->info.rank == server.rank;
}

MembershipTable::Member& MembershipTable::AddMember(const NodeInfo& node, uint64_t join_id) {
  Member& member = members_[node.id];
  member.info = node;
  member.join_id = join_id;
  if (join_id != 0) by_join_id_[join_id] = node.id;
  if (!node.public_key.empty()) by_public_key_[node.public_key] = node.id;
  next_id_ = node.id + 1;
  return member;
}

void MembershipTable::AddServer(const NodeInfo& server, uint64_t join_id, absl::Time now,
                                Membership* next) {
  AddMember(server, join_id);
  next->servers.insert(
      std::ranges::upper_bound(next->servers, server.rank, std::less<>(), &NodeInfo::rank), server);
  Heard(server.id, now);
}

void MembershipTable::Admit(const NodeInfo& server, uint64_t join_id, absl::Time now) {
  auto next = NextEpoch();
  AddServer(server, join_id, now, next.get());
  GiveFreeSlots(server.id, next.get());
  Begin(std::move(next));
}

void MembershipTable::Replace(NodeId lost, absl::Status why, const HomeBytes& homes,
                              const NodeInfo& server, uint64_t join_id, absl::Time now) {
  MarkEvicted(&members_.at(lost), std::move(why));
  auto next = NextEpoch();
  std::erase_if(next->servers, [lost](const NodeInfo& node) { return node.id == lost; });
  AddServer(server, join_id, now, next.get());
  GiveSlots(lost, server.id, homes, next.get());
  GiveFreeSlots(server.id, next.get());
  Begin(std::move(next));
}

// ---- candidates

Rank MembershipTable::VacantWorkerRank(Rank wanted) const {
  for (const Rank rank : membership_->vacant) {
    if (wanted >= 0 && rank != wanted) continue;
    const bool is_taken = std::ranges::any_of(members_, [rank](const auto& entry) {
      return entry.second.is_candidate && entry.second.info.rank == rank;
    });
    if (!is_taken) return rank;
  }
  return -1;
}

absl::Status MembershipTable::CheckCandidate(const JoinRequest& request, Rank rank) const {
  const int processes = ProcessesOfWorkers()[static_cast<size_t>(rank)];
  if (request.processes == processes) return absl::OkStatus();
  return InvalidArgument("%s joins with %d process(es) as worker rank %d, which has %d in this job",
                         request.host, request.processes, rank, processes);
}

bool MembershipTable::CanAddCandidate(const NodeInfo& worker, uint64_t join_id) const {
  if (!frozen() || worker.role != Role::kWorker || !IsNew(worker, join_id)) return false;
  if (worker.rank < 0 || VacantWorkerRank(worker.rank) != worker.rank) return false;
  return worker.processes == ProcessesOfWorkers()[static_cast<size_t>(worker.rank)];
}

void MembershipTable::AddCandidate(const NodeInfo& worker, uint64_t join_id, absl::Time now) {
  AddMember(worker, join_id).is_candidate = true;
  ++num_candidates_;
  Heard(worker.id, now);
}

void MembershipTable::ForgetCandidate(NodeId worker) {
  const auto found = members_.find(worker);
  leases_.erase({found->second.lease_end, worker});
  by_public_key_.erase(found->second.info.public_key);
  by_join_id_.erase(found->second.join_id);
  members_.erase(found);
  --num_candidates_;
}

void MembershipTable::AdmitCandidates(const std::vector<NodeId>& workers, absl::Time now) {
  auto next = NextEpoch();
  for (const NodeId worker : workers) {
    Member& member = members_.at(worker);
    member.is_candidate = false;
    --num_candidates_;
    const NodeInfo& info = member.info;
    next->workers.insert(
        std::ranges::upper_bound(next->workers, info.rank, std::less<>(), &NodeInfo::rank), info);
    std::erase(next->vacant, info.rank);
    Heard(worker, now);
  }
  // Rounds of before had no contribution of them, and cannot be made again with them.
  next->unsafe = next->epoch;
  Begin(std::move(next));
}

std::set<Rank> MembershipTable::LostRanks() const {
  std::set<Rank> ranks;
  for (const auto& [id, member] : members_) {
    const NodeInfo& info = member.info;
    const bool is_lost = info.role == Role::kWorker && !member.evicted.ok();
    // Another one may have come in its place.
    if (is_lost && membership_->IsVacant(info.rank)) ranks.insert(info.rank);
  }
  return ranks;
}

const MembershipTable::Member* MembershipTable::Expired(absl::Time now) const {
  if (leases_.empty() || leases_.begin()->first > now) return nullptr;
  return &members_.at(leases_.begin()->second);
}

absl::Time MembershipTable::NextExpiry() const {
  return leases_.empty() ? absl::InfiniteFuture() : leases_.begin()->first;
}

const MembershipTable::Member* MembershipTable::FindByJoinId(uint64_t join_id) const {
  const auto found = by_join_id_.find(join_id);
  return found == by_join_id_.end() ? nullptr : &members_.at(found->second);
}

const MembershipTable::Member* MembershipTable::Find(NodeId node) const {
  const auto found = members_.find(node);
  return found == members_.end() ? nullptr : &found->second;
}

}  // namespace bdn
