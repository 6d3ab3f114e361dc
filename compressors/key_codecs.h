#ifndef BANDONEON_COMPRESSORS_KEY_CODECS_H_
#define BANDONEON_COMPRESSORS_KEY_CODECS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "compressors/segmented.h"

namespace bdn {

// One direction's error feedback.
struct LinkFeedback {
  bool on = false;
  float decay = 1.0f;
  bool learning_rate_correction = false;
};

// What both ends of a key use, step by step: `none` during the warm-up, then the declared codecs.
// Immutable, thread-safe.
struct KeyCodecs {
  std::unique_ptr<const SegmentedCodec> push;
  std::unique_ptr<const SegmentedCodec> pull;
  std::unique_ptr<const SegmentedCodec> dense;
  LinkFeedback push_feedback;
  LinkFeedback pull_feedback;
  uint64_t warmup_steps = 0;

  // Whether the reply to a step can be added up from its pushes without decoding them: one linear
  // codec both ways, and no memory on the way back.
  bool AddsEncoded(uint64_t step) const { return adds_encoded && step > warmup_steps; }
  bool adds_encoded = false;

  // Steps count from 1.
  const SegmentedCodec& Push(uint64_t step) const { return step <= warmup_steps ? *dense : *push; }
  const SegmentedCodec& Pull(uint64_t step) const { return step <= warmup_steps ? *dense : *pull; }
};

struct KeyCodecsOptions {
  std::string push_spec;
  std::string pull_spec;
  uint64_t warmup_steps = 0;
  std::vector<size_t> segment_elements;
  DType dtype = DType::kFloat32;
};

// InvalidArgument shows a spec that is wrong or does not take the element type.
absl::StatusOr<KeyCodecs> MakeKeyCodecs(const KeyCodecsOptions& options);

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_KEY_CODECS_H_
