#include "common/cluster/placement_table.h"

#include "common/base/status.h"

namespace bdn {

absl::Status CheckPlaced(const Catalogue& catalogue, const PlacementTable& placement) {
  if (placement.version().catalogue != catalogue.version) {
    return InvalidArgument("the placement is of catalogue %d, not of %d",
                           placement.version().catalogue, catalogue.version);
  }
  for (const KeyEntry& key : catalogue.keys) {
    if (placement.OwnerOf(key.key) == 0) {
      return InvalidArgument("key %s has no owner", key.key.ToString());
    }
  }
  return absl::OkStatus();
}

}  // namespace bdn
