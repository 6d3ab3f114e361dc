#ifndef BANDONEON_COMMON_CLUSTER_PLACEMENT_TABLE_H_
#define BANDONEON_COMMON_CLUSTER_PLACEMENT_TABLE_H_

#include <compare>
#include <cstdint>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/cluster/catalogue.h"

namespace bdn {

// Which placement it is. Later ones compare greater: an epoch may move keys, and within an epoch
// the placement only grows with the catalogue.
struct PlacementVersion {
  Epoch epoch = 0;         // of the membership that has the servers
  uint32_t catalogue = 0;  // version of the catalogue whose keys are placed

  auto operator<=>(const PlacementVersion&) const = default;
};

// Who owns the keys. An immutable snapshot: what the keys are is the catalogue's to say.
class PlacementTable {
 public:
  using Owners = absl::flat_hash_map<Key, NodeId>;

  PlacementTable() = default;  // of no keys
  PlacementTable(PlacementVersion version, Owners owners)
      : version_(version), owners_(std::move(owners)) {}

  PlacementVersion version() const { return version_; }
  const Owners& owners() const { return owners_; }
  // The server that owns `key`; 0 where nobody does.
  NodeId OwnerOf(Key key) const {
    const auto found = owners_.find(key);
    return found == owners_.end() ? 0 : found->second;
  }

  bool operator==(const PlacementTable&) const = default;

 private:
  PlacementVersion version_;
  Owners owners_;
};

// InvalidArgument where `placement` is not of this version of the catalogue, or names a key that
// nobody owns.
absl::Status CheckPlaced(const Catalogue& catalogue, const PlacementTable& placement);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_PLACEMENT_TABLE_H_
