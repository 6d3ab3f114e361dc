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

// About as many bytes has a piece at most.
inline constexpr size_t kPieceBytes = size_t{512} << 10;

// What a version added, as serialised CataloguePiece messages: at least one.
std::vector<std::string> PiecesOf(const CatalogueDelta& delta, size_t piece_bytes = kPieceBytes);

// Puts a version together of its pieces, which `fetch` brings, one after the other. Returns its
// error, or InvalidArgument where the pieces are not of one version or CheckDelta refuses it.
absl::StatusOr<SharedDelta> ReadDelta(
    uint32_t version,
    const std::function<absl::Status(uint32_t piece, bandoneon::control::CataloguePiece*)>& fetch);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_CATALOGUE_PIECES_H_
