#ifndef BANDONEON_SERVER_PLACES_H_
#define BANDONEON_SERVER_PLACES_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/ids.h"
#include "common/base/rank_group.h"
#include "common/cluster/membership.h"

namespace bdn {

// The position of a worker in a roster, from 0. Sums are made in the order of places, and a round
// is complete when every place has pushed. A rank is another thing: it is a worker's for the whole
// job, and the ranks of a roster have gaps once a worker was lost. The types differ, so that no
// caller takes one for the other.
enum class Place : uint32_t {};

constexpr size_t IndexOf(Place place) { return static_cast<size_t>(place); }
constexpr Place PlaceAt(size_t index) { return static_cast<Place>(index); }

// A roster: the workers that exchange a key in one epoch, in the order of their ranks. Immutable.
class Places {
 public:
  Places() = default;
  // Takes those of the group. `workers` have rising ranks.
  explicit Places(const std::vector<NodeInfo>& workers, const RankGroup& group = {});

  size_t size() const { return workers_.size(); }
  // These describe the worker at a place. REQUIRES: IndexOf(place) < size().
  Rank RankOf(Place place) const { return workers_[IndexOf(place)].rank; }
  NodeId NodeOf(Place place) const { return workers_[IndexOf(place)].node; }
  // These return the place of a worker; nothing where the roster does not have it.
  std::optional<Place> OfNode(NodeId node) const;
  std::optional<Place> OfRank(Rank rank) const;

 private:
  struct Worker {
    Rank rank;
    NodeId node;
  };
  std::vector<Worker> workers_;
  absl::flat_hash_map<NodeId, Place> by_node_;
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_PLACES_H_
