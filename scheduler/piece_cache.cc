#include "scheduler/piece_cache.h"

#include <string>

#include "common/base/status.h"
#include "common/cluster/catalogue_pieces.h"

namespace bdn {

absl::StatusOr<grpc::ByteBuffer> PieceCache::GetFor(NodeId worker, uint32_t first, uint32_t last,
                                                    uint32_t piece) {
  const SharedDelta delta = host_->DeltaFor(worker, first, last);
  if (delta == nullptr) return NotFound("there is no catalogue %d to %d", first, last);
  if (!delta->tensors.empty()) return Get(delta->version.catalogue, piece);
  // Without its content it is small, and is not what other workers are told of this version.
  if (piece > 0) return NotFound("catalogue %d has 1 piece", last);
  const grpc::Slice text(PiecesOf(*delta).front());
  return grpc::ByteBuffer(&text, 1);
}

absl::StatusOr<grpc::ByteBuffer> PieceCache::Get(uint32_t version, uint32_t piece) {
  const SharedDelta delta = host_->DeltaOf(version);
  if (delta == nullptr) return NotFound("there is no catalogue %d", version);
  // Serialising under the lock is intended: all nodes ask for a version at once, and one of them
  // makes it.
  MutexLock lock(&mu_);
  if (versions_.size() < version) versions_.resize(version);
  std::vector<grpc::Slice>& pieces = versions_[version - 1];
  if (pieces.empty()) {
    for (const std::string& text : PiecesOf(*delta)) pieces.emplace_back(text);
  }
  if (piece >= pieces.size()) {
    return NotFound("catalogue %d has %d piece(s), and none of number %d", version, pieces.size(),
                    piece);
  }
  return grpc::ByteBuffer(&pieces[piece], 1);
}

}  // namespace bdn
