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

// The error feedback of one direction of a link.
struct LinkFeedback {
  bool on = false;
  float decay = 1.0f;
  bool learning_rate_correction = false;
};

// The content of the replies to a key.
enum class ReplyKind : uint8_t {
  kAggregate,  // the aggregate of the contributions
  kWeights,    // the weights that the server holds, encoded as they are
  kDelta,      // the difference between the weights and the replica that every worker holds
  // The signs of a step, which workers take on the weights that they hold (memory/sign_step.h).
  kSigns,
};

// The codec of one period of a schedule: the steps up to `last_step`, after those of the period
// before.
struct CodecStage {
  uint64_t last_step = 0;
  std::unique_ptr<const SegmentedCodec> codec;
};

// The codecs that both ends of a key use, step by step: `none` during the warm-up, then the periods
// of the declared schedules, then their last codecs. Where a link has ef(...) or delta(...), what
// it leaves out may grow without bound, and of aggregates by a codec that `guesses` elements may
// come back wrong; then `none` from a step on that both ends have agreed on meanwhile. Thread-safe:
// immutable except for that step.
struct KeyCodecs {
  std::unique_ptr<const SegmentedCodec> push;
  std::unique_ptr<const SegmentedCodec> pull;
  std::vector<CodecStage> push_stages;  // by rising step
  std::vector<CodecStage> pull_stages;
  LinkFeedback push_feedback;
  LinkFeedback pull_feedback;
  ReplyKind reply = ReplyKind::kAggregate;
  uint64_t warmup_steps = 0;

  // Returns the content of the reply to a step; during the warm-up whole weights take the place of
  // deltas and signs.
  ReplyKind Reply(uint64_t step) const {
    const bool whole = step <= warmup_steps && reply != ReplyKind::kAggregate;
    return whole ? ReplyKind::kWeights : reply;
  }
  // Returns whether the server keeps track of what its replies left out, by a residual or a
  // replica.
  bool pull_has_memory() const { return pull_feedback.on || reply == ReplyKind::kDelta; }
  // Returns whether workers hold weights on which replies build.
  bool keeps_replica() const { return reply == ReplyKind::kDelta || reply == ReplyKind::kSigns; }

  // Returns whether the reply to a step can be added up from its pushes without decoding them: one
  // linear codec both ways, and no residual for the replies.
  bool AddsEncoded(uint64_t step) const {
    return adds_encoded && &Push(step) == push.get() && &Pull(step) == pull.get();
  }
  bool adds_encoded = false;

  // Return the codec of a step. Steps count from 1.
  const SegmentedCodec& Push(uint64_t step) const {
    return IsUncompressed(step) ? uncompressed->codec : At(push_stages, *push, step);
  }
  const SegmentedCodec& Pull(uint64_t step) const {
    if (reply != ReplyKind::kSigns && IsUncompressed(step)) return uncompressed->codec;
    return At(pull_stages, *pull, step);
  }

  // Sends the key uncompressed both ways from `first_step` on, for good. Of several calls the one
  // with the earliest step counts. Signs of weights stay signs, which lose nothing. No-op where
  // `uncompressed` is null.
  void GoUncompressed(uint64_t first_step) const;
  bool IsUncompressed(uint64_t step) const {
    return uncompressed != nullptr &&
           step >= uncompressed->first_step.load(std::memory_order_relaxed);
  }
  // The codec `none`, and the step from which on it is used.
  struct Uncompressed {
    explicit Uncompressed(SegmentedCodec none) : codec(std::move(none)) {}
    const SegmentedCodec codec;
    // Publishes no other memory: an end that encodes a step has had the reply to the step before.
    std::atomic<uint64_t> first_step = UINT64_MAX;
  };
  // Null: no link of the key has ef(...) or delta(...), and its replies hold no guesses.
  std::unique_ptr<Uncompressed> uncompressed;
  // Returns whether elements of a reply may be guesses that nothing makes up for later.
  bool reply_guesses() const {
    return reply == ReplyKind::kAggregate && !pull_feedback.on && pull->codec().guesses();
  }
  // Returns the most bytes of a payload, either way and at any step.
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

// The facts of which a key's codecs are made.
struct KeyCodecsOptions {
  std::string push_spec;
  std::string pull_spec;
  uint64_t warmup_steps = 0;
  std::vector<size_t> segment_elements;
  DType dtype = DType::kFloat32;
  // Properties of the update rule: whether the server holds the weights, and whether it steps by
  // signs.
  bool holds_weights = false;
  bool steps_by_signs = false;
};

// Makes the codecs of a key. InvalidArgument shows a spec that is wrong, does not take the element
// type, or does not go with the update rule.
absl::StatusOr<KeyCodecs> MakeKeyCodecs(const KeyCodecsOptions& options);

}  // namespace bdn

#endif  // BANDONEON_LINK_KEY_CODECS_H_
