#ifndef BANDONEON_COMPRESSORS_CODEC_SCHEDULE_H_
#define BANDONEON_COMPRESSORS_CODEC_SCHEDULE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "compressors/codec_spec.h"

namespace bdn {

// A link whose codec changes with the step, as in the sparsification warm-up of Deep Gradient
// Compression (arXiv 1712.01887):
//
//   none for 100; ef(topk(ratio=0.25)) for 400; ef(topk(ratio=0.01))
//
// The memory stays: all stages have the same one, but for `none` before them.
struct CodecSchedule {
  struct Stage {
    LinkCodec link;
    uint64_t steps = 0;  // 0: for good, the last stage only
  };
  std::vector<Stage> stages;  // at least one

  const LinkCodec& last() const { return stages.back().link; }
  // Canonical.
  std::string spec() const;
};

// A codec spec alone is a schedule of one stage. InvalidArgument as ParseCodecSpec's, or shows the
// wrong stage: steps that are no number from 1 to 2^40, a last stage that ends, another memory.
absl::StatusOr<CodecSchedule> ParseCodecSchedule(std::string_view text);

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_CODEC_SCHEDULE_H_
