#include "scheduler/lost_servers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/status.h"

namespace bdn {
namespace {

// The most names of servers in an error.
constexpr size_t kMostNames = 8;

}  // namespace

bool LostServers::MayGoOnWithoutOne() const {
  // Somebody starts again whatever ends of a job with a log.
  return may_lose() && (is_logged_ || table_.membership()->servers.size() > 1);
}

bool LostServers::HasOther(const NodeInfo& server) const {
  return may_lose() && (table_.membership()->servers.size() > 1 || FindWaiting(server.rank) != 0);
}

// ---- the servers of the membership

std::string LostServers::Present() const {
  return absl::StrFormat("with %d of %d servers", table_.membership()->servers.size(),
                         options_.config.num_servers);
}

HomeBytes LostServers::BytesOfHomes() const {
  HomeBytes bytes;
  for (const NodeId home : table_.Homes()) bytes[home] = declarations_.LoadOf(home).key_bytes;
  return bytes;
}

std::string LostServers::TakeOut(const NodeInfo& gone, const std::string& how) {
  const std::string name = MembershipTable::Describe(gone);
  table_.EvictServer(gone.id, Evicted("the job goes on without %s, which %s", name, how),
                     BytesOfHomes());
  return absl::StrFormat("%s: without server %d, which %s", Present(), gone.rank, how);
}

std::string LostServers::AddServer(const ServerJoined& event, absl::Time now) {
  std::string what = absl::StrFormat("with server %d", event.server.rank);
  if (event.lost == 0) {
    table_.Admit(event.server, event.join_id, now);
  } else {
    const std::string lost = MembershipTable::Describe(table_.Find(event.lost)->info);
    table_.Replace(event.lost, Evicted("the job goes on without %s, which %s", lost, event.how),
                   BytesOfHomes(), event.server, event.join_id, now);
    absl::StrAppendFormat(&what, " in the place of node %d, which %s", event.lost, event.how);
  }
  return absl::StrFormat("%s: %s", Present(), what);
}

Placer::Load LostServers::LoadOf(NodeId server) const {
  const auto& membership = table_.membership();
  if (membership == nullptr || membership->moved.empty()) return declarations_.LoadOf(server);
  Placer::Load sum;
  for (const NodeId home : table_.Homes()) {
    const auto moved = membership->moved.find(home);
    uint64_t slots = home == server ? kSlots : 0;
    if (moved != membership->moved.end()) {
      slots = static_cast<uint64_t>(std::ranges::count(moved->second, server, &SlotOwner::server));
    }
    if (slots == 0) continue;
    const Placer::Load load = declarations_.LoadOf(home);
    // In this order nothing overflows.
    const auto share = [slots](uint64_t all) {
      return all / kSlots * slots + all % kSlots * slots / kSlots;
    };
    sum.keys += share(load.keys);
    sum.key_bytes += share(load.key_bytes);
    sum.server_bytes += share(load.server_bytes);
  }
  return sum;
}

// ---- a job without servers

void LostServers::OnChanged(absl::Time now) {
  const bool has_none = table_.membership()->servers.empty();
  deadline_ = has_none ? now + options_.join_timeout : absl::InfiniteFuture();
}

void LostServers::RenewDeadline(absl::Time now) {
  if (deadline_ < absl::InfiniteFuture()) deadline_ = now + options_.join_timeout;
}

LostServers::Loss LostServers::LossOfAll() const {
  Loss loss;
  std::string names;
  size_t count = 0;
  for (const auto& [id, member] : table_.members()) {
    if (member.info.role != Role::kServer || member.evicted.ok()) continue;
    loss.last = &member.info;
    if (++count > kMostNames) continue;
    names += (count > 1 ? ", " : "") + MembershipTable::Describe(member.info);
  }
  if (count > kMostNames) absl::StrAppendFormat(&names, " and %d more", count - kMostNames);
  loss.why = absl::StrFormat("no server is left, and none has joined for %s: the job has lost %s",
                             absl::FormatDuration(options_.join_timeout), names);
  return loss;
}

// ---- the servers that wait for a vacant place

uint64_t LostServers::FindWaiting(Rank rank) const {
  for (const auto& [number, waiting] : waiting_) {
    const Rank wanted = waiting.request.wanted_rank;
    const bool has_rank =
        rank < 0 ? table_.VacantServerRank(wanted) >= 0 : wanted < 0 || wanted == rank;
    // Another one may have joined with its public key meanwhile.
    if (has_rank && table_.CheckAdmits(waiting.request).ok()) return number;
  }
  return 0;
}

ServerJoined LostServers::JoinOf(uint64_t number, NodeId lost, const std::string& how) const {
  const JoinRequest& request = waiting_.at(number).request;
  const Rank rank =
      lost == 0 ? table_.VacantServerRank(request.wanted_rank) : table_.Find(lost)->info.rank;
  return {table_.MakeNode(request, rank), request.join_id, lost, how};
}

std::vector<CallId> LostServers::TakeCalls(uint64_t number) {
  const uint64_t join_id = waiting_.at(number).request.join_id;
  std::vector<CallId> calls;
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    const auto one = next++;
    const bool is_same = join_id != 0 && one->second.request.join_id == join_id;
    if (one->first != number && !is_same) continue;
    calls.push_back(one->second.call_id);
    waiting_.erase(one);
  }
  return calls;
}

std::vector<CallId> LostServers::TakeAllCalls() {
  std::vector<CallId> calls;
  for (const auto& [number, waiting] : std::exchange(waiting_, {})) {
    calls.push_back(waiting.call_id);
  }
  return calls;
}

std::string LostServers::Wait() const {
  const size_t here = table_.membership()->servers.size();
  if (here < static_cast<size_t>(options_.config.num_servers)) {
    return absl::StrFormat("waiting to be let in, with %d of %d servers here", here,
                           options_.config.num_servers);
  }
  return absl::StrFormat("waiting for a server of the job to be lost: all %d are here", here);
}

// ---- silent links

size_t LostServers::CountUnheard(NodeId server, const Roster& roster, absl::Time now) const {
  // Workers notice it at different times, so half of the time is enough here.
  const absl::Duration least = options_.config.link_timeout / 2;
  const absl::Time since = now - options_.config.lease_timeout;
  size_t count = 0;
  for (const RosterMember& member : roster) {
    const auto told = unheard_.find(member.node);
    if (told == unheard_.end() || told->second.at < since) continue;
    const std::vector<NodeWait>& servers = told->second.servers;
    const auto found = std::ranges::find(servers, server, &NodeWait::node);
    if (found != servers.end() && found->wait >= least) ++count;
  }
  return count;
}

std::optional<NodeLost> LostServers::OnUnheard(const NodeInfo& worker,
                                               const std::vector<NodeWait>& servers,
                                               const Roster& roster, bool may_lose_worker,
                                               bool has_heard_all, absl::Time now) {
  unheard_[worker.id] = {servers, now};
  const absl::Duration most = options_.config.link_timeout;
  if (most == absl::ZeroDuration()) return std::nullopt;
  const std::string limit = absl::FormatDuration(most);
  for (const NodeWait& each : servers) {
    if (each.wait < most) continue;
    const std::vector<NodeInfo>& all = table_.membership()->servers;
    // One that is out by now is none of the job's, whoever has its rank.
    const auto server = std::ranges::find(all, each.node, &NodeInfo::id);
    if (server == all.end()) continue;
    const size_t count = CountUnheard(each.node, roster, now);
    const double seconds = absl::ToDoubleSeconds(each.wait);
    const bool is_most = 2 * count > roster.size();
    // A server that goes costs no result, and a worker does. But to whom the others answer, and who
    // has no answer alone, is on the wrong side of a broken link.
    if (!is_most && may_lose_worker) {
      if (!has_heard_all) continue;
      return NodeLost{worker.id,
                      absl::StrFormat("alone has had no answer of server %d for %.1f s, and "
                                      "link-timeout is %s",
                                      server->rank, seconds, limit)};
    }
    if (all.size() < 2 || !MayGoOnWithoutOne()) continue;
    return NodeLost{server->id, absl::StrFormat("has not answered %d of %d workers for %.1f s, and "
                                                "link-timeout is %s",
                                                count, roster.size(), seconds, limit)};
  }
  return std::nullopt;
}

}  // namespace bdn
