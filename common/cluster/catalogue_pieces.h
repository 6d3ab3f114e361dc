#ifndef BANDONEON_COMMON_CLUSTER_CATALOGUE_PIECES_H_
#define BANDONEON_COMMON_CLUSTER_CATALOGUE_PIECES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cluster/catalogue.h"

namespace bandoneon::control {
class CataloguePiece;
}

namespace bdn {

// The most bytes that a piece has, approximately.
inline constexpr size_t kPieceBytes = size_t{512} << 10;

// Returns the additions of a version as serialised CataloguePiece messages, at least one.
std::vector<std::string> PiecesOf(const CatalogueDelta& delta, size_t piece_bytes = kPieceBytes);

// Puts a version together from its pieces, which `fetch` fetches one after the other. Returns the
// error of `fetch`, or InvalidArgument where the pieces are not of one version, from `version` to
// `until` (0: of `version` alone), or CheckDelta refuses the whole.
absl::StatusOr<SharedDelta> ReadDelta(
    uint32_t version,
    const std::function<absl::Status(uint32_t piece, bandoneon::control::CataloguePiece*)>& fetch,
    uint32_t until = 0);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_CATALOGUE_PIECES_H_
