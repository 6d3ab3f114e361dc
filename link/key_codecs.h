#ifndef BANDONEON_LINK_KEY_CODECS_H_
#define BANDONEON_LINK_KEY_CODECS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
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

// What the replies to a key carry.
enum class ReplyKind : uint8_t {
  kAggregate,  // of the contributions
  kWeights,    // that the server holds, encoded as they are
  kDelta,      // what the weights differ by from the replica that every worker holds
  kSigns,      // of a step that workers take on the weights that they hold (memory/sign_step.h)
};

// The codec of the steps up to `last_step`, after the stage before it.
struct CodecStage {
  uint64_t last_step = 0;
  std::unique_ptr<const SegmentedCodec> codec;
};

// What both ends of a key use, step by step: `none` during the warm-up, then the stages of the
// declared schedules, then their last codecs. Where a link has a memory that may grow without bound, `none`
// from a step on that both ends have agreed on meanwhile. Thread-safe; immutable but for that step.
struct KeyCodecs {
  std::unique_ptr<const SegmentedCodec> push;
  std::unique_ptr<const SegmentedCodec> pull;
  std::vector<CodecStage> push_stages;  // by rising step
  std::vector<CodecStage> pull_stages;
  LinkFeedback push_feedback;
  LinkFeedback pull_feedback;
  ReplyKind reply = ReplyKind::kAggregate;
  uint64_t warmup_steps = 0;

  // What the reply to a step carries: whole weights during the warm-up.
  ReplyKind Reply(uint64_t step) const {
    const bool whole = step <= warmup_steps && reply != ReplyKind::kAggregate;
    return whole ? ReplyKind::kWeights : reply;
  }
  // Whether the server remembers what its replies left out.
  bool pull_has_memory() const { return pull_feedback.on || reply == ReplyKind::kDelta; }
  // Whether workers hold what replies build on.
  bool keeps_replica() const { return reply == ReplyKind::kDelta || reply == ReplyKind::kSigns; }

  // Whether the reply to a step can be added up from its pushes without decoding them: one linear
  // codec both ways, and no memory on the way back.
  bool AddsEncoded(uint64_t step) const {
    return adds_encoded && &Push(step) == push.get() && &Pull(step) == pull.get();
  }
  bool adds_encoded = false;

  // Steps count from 1.
  const SegmentedCodec& Push(uint64_t step) const {
    return IsUncompressed(step) ? uncompressed->codec : At(push_stages, *push, step);
  }
  const SegmentedCodec& Pull(uint64_t step) const {
    if (reply != ReplyKind::kSigns && IsUncompressed(step)) return uncompressed->codec;
    return At(pull_stages, *pull, step);
  }

  // Both ways from `first_step` on, for good; later ones change nothing. Signs of weights stay signs, which
  // lose nothing. No-op of links without a memory.
  void GoUncompressed(uint64_t first_step) const;
  bool IsUncompressed(uint64_t step) const {
    return uncompressed != nullptr &&
           step >= uncompressed->first_step.load(std::memory_order_relaxed);
  }
  struct Uncompressed {
    explicit Uncompressed(SegmentedCodec none) : codec(std::move(none)) {}
    const SegmentedCodec codec;
    // Publishes nothing but itself: who encodes a step has had its predecessor's reply.
    std::atomic<uint64_t> first_step = UINT64_MAX;
  };
  std::unique_ptr<Uncompressed> uncompressed;  // null: no link of the key has a memory
  // Of a payload either way, at any step.
  size_t MaxEncodedBytes() const;

 private:
  static const SegmentedCodec& At(const std::vector<CodecStage>& stages, const SegmentedCodec& last,
                                  uint64_t step) {
    for (const CodecStage& stage : stages) {
      if (step <= stage.last_step) return *stage.codec;
    }
    return last;
  }
};

struct KeyCodecsOptions {
  std::string push_spec;
  std::string pull_spec;
  uint64_t warmup_steps = 0;
  std::vector<size_t> segment_elements;
  DType dtype = DType::kFloat32;
  // Of the update rule: whether the server holds the weights, and whether it steps by signs.
  bool holds_weights = false;
  bool steps_by_signs = false;
};

// InvalidArgument shows a spec that is wrong, does not take the element type, or does not go with
// the update rule.
absl::StatusOr<KeyCodecs> MakeKeyCodecs(const KeyCodecsOptions& options);

}  // namespace bdn

#endif  // BANDONEON_LINK_KEY_CODECS_H_
