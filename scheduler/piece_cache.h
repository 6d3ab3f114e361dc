#ifndef BANDONEON_SCHEDULER_PIECE_CACHE_H_
#define BANDONEON_SCHEDULER_PIECE_CACHE_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "scheduler/job_host.h"

namespace bdn {

// The catalogue in its form on the wire: each version is serialised once, and all readers share the
// bytes. Thread-safe.
class PieceCache {
 public:
  explicit PieceCache(const JobHost* host) : host_(host) {}

  // Returns a serialised CataloguePiece. NotFound: there is no such version yet, or it has fewer
  // pieces.
  absl::StatusOr<grpc::ByteBuffer> Get(uint32_t version, uint32_t piece);
  // Returns the same of the version that JobHost::DeltaFor returns.
  absl::StatusOr<grpc::ByteBuffer> GetFor(NodeId worker, uint32_t first, uint32_t last,
                                          uint32_t piece);

 private:
  const JobHost* const host_;
  Mutex mu_;
  std::vector<std::vector<grpc::Slice>> versions_ ABSL_GUARDED_BY(mu_);  // by version, from 1
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_PIECE_CACHE_H_
