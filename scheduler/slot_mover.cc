#include "scheduler/slot_mover.h"

#include <cstddef>
#include <set>
#include <tuple>
#include <vector>

namespace bdn {
namespace {

// The work of one server.
struct Share {
  NodeId server = 0;
  uint64_t bytes = 0;
  size_t slots = 0;
};

// Makes the slots of a home that is lost movable: until now it answered for all of them.
void OpenSlots(NodeId lost, const HomeBytes& homes, Membership* membership) {
  // A server that joined later has no keys of its own.
  if (!homes.contains(lost) || membership->moved.contains(lost)) return;
  membership->moved[lost].fill({lost, 0});
}

// Returns the shares of all servers, by rank. No sum overflows, because a slot's bytes are a
// sixteenth.
std::vector<Share> SharesOf(const HomeBytes& homes, const Membership& membership) {
  std::map<NodeId, size_t> ranks;
  std::vector<Share> shares;
  for (const NodeInfo& server : membership.servers) {
    ranks[server.id] = shares.size();
    shares.push_back({server.id});
  }
  const auto add = [&](NodeId server, uint64_t bytes, size_t slots) {
    const auto found = ranks.find(server);
    if (found == ranks.end()) return;
    shares[found->second].bytes += bytes;
    shares[found->second].slots += slots;
  };
  for (const auto& [home, bytes] : homes) {
    const auto moved = membership.moved.find(home);
    if (moved == membership.moved.end()) {
      add(home, bytes / kSlots * kSlots, kSlots);
      continue;
    }
    for (const SlotOwner& owner : moved->second) add(owner.server, bytes / kSlots, 1);
  }
  return shares;
}

}  // namespace

void MoveSlots(NodeId lost, const HomeBytes& homes, Membership* membership) {
  OpenSlots(lost, homes, membership);
  std::vector<Share> shares = SharesOf(homes, *membership);
  using Place = std::tuple<uint64_t, size_t, size_t>;  // bytes, slots, index in `shares`
  std::set<Place> lightest;
  for (size_t i = 0; i < shares.size(); ++i) lightest.insert({shares[i].bytes, shares[i].slots, i});
  for (auto& [home, slots] : membership->moved) {
    const auto bytes = homes.find(home);
    for (SlotOwner& owner : slots) {
      if (owner.server != lost) continue;
      owner = {0, membership->epoch};
      if (lightest.empty()) continue;
      Share& share = shares[std::get<2>(*lightest.begin())];
      auto place = lightest.extract(lightest.begin());
      share.bytes += bytes == homes.end() ? 0 : bytes->second / kSlots;
      ++share.slots;
      place.value() = {share.bytes, share.slots, std::get<2>(place.value())};
      lightest.insert(std::move(place));
      owner.server = share.server;
    }
  }
}

void GiveSlots(NodeId lost, NodeId newcomer, const HomeBytes& homes, Membership* membership) {
  OpenSlots(lost, homes, membership);
  for (auto& [home, slots] : membership->moved) {
    for (SlotOwner& owner : slots) {
      if (owner.server == lost) owner = {newcomer, membership->epoch};
    }
  }
}

void GiveFreeSlots(NodeId newcomer, Membership* membership) {
  for (auto& [home, slots] : membership->moved) {
    for (SlotOwner& owner : slots) {
      if (owner.server == 0) owner = {newcomer, membership->epoch};
    }
  }
}

}  // namespace bdn
