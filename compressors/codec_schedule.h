#ifndef BANDONEON_COMPRESSORS_CODEC_SCHEDULE_H_
#define BANDONEON_COMPRESSORS_CODEC_SCHEDULE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "compressors/codec_spec.h"

namespace bdn {

// A codec of one direction of a link that changes with the step, as in the sparsification warm-up
// of Deep Gradient Compression (arXiv 1712.01887):
//
//   none for 100; ef(topk(ratio=0.25)) for 400; ef(topk(ratio=0.01))
//
// The residual or replica lasts from one period to the next. So all periods have the same kind of
// state and the same options of it; only plain `none` may come before them without one.
struct CodecSchedule {
  // A period of the schedule: a codec and its number of steps.
  struct Stage {
    LinkCodec link;
    uint64_t steps = 0;  // 0: for good, in the last period only
  };
  std::vector<Stage> stages;  // at least one

  const LinkCodec& last() const { return stages.back().link; }
  // Returns the canonical text.
  std::string spec() const;
};

// Parses a schedule. A codec spec alone is a schedule of one period. InvalidArgument as
// ParseCodecSpec's, or shows the wrong period: steps that are not a number from 1 to 2^40, a last
// period that ends, or a state (ef, delta or their options) other than the last one's.
absl::StatusOr<CodecSchedule> ParseCodecSchedule(std::string_view text);

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_CODEC_SCHEDULE_H_
