#include "server/key_snapshot.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "common/base/endian.h"
#include "common/base/status.h"

namespace bdn {
namespace {

constexpr uint32_t kMagic = 0x314E5342;  // "BSN1" in the order of the bytes
// The layout: fixed fields, the segments, the rule's text padded to four bytes, the arrays.
enum Offset : size_t {
  kMagicAt = 0,
  kNumSegmentsAt = 4,
  kLastStepAt = 8,
  kWeightsStepAt = 16,
  kInitRootAt = 24,
  kLastInitAt = 28,
  kPreviousRateAt = 32,
  kRuleBytesAt = 36,
  kNumOverAt = 40,
  kGuardAt = 44,  // bit 0: the guard has acted; bit 1: it wants the key uncompressed
  kLastResidualAt = 48,
  kResidualAt = 56,  // elements of each array
  kWeightsAt = 64,
  kReplicaAt = 72,
  kMomentsAt = 80,
  kFixedBytes = 88,
};
constexpr size_t kSegmentBytes = 16;
constexpr size_t kMostMoments = 2;

size_t Padded(size_t bytes) { return (bytes + 3) / 4 * 4; }

// Writes one array after the other.
class Writer {
 public:
  Writer(MutableByteSpan out, size_t at) : out_(out), at_(at) {}
  void Put(std::span<const float> values) {
    for (const float value : values) {
      StoreLittle(out_, at_, value);
      at_ += sizeof(float);
    }
  }

 private:
  MutableByteSpan out_;
  size_t at_;
};

}  // namespace

bool HasState(const KeyPlan& plan) { return plan.rule != nullptr || plan.codecs.pull_has_memory(); }

uint64_t MaxSnapshotBytes(const KeyPlan& plan) {
  if (plan.entry.kind != KeyKind::kDense || !HasState(plan)) return 0;
  const bool has_weights = plan.rule != nullptr;
  const uint64_t arrays = (plan.codecs.pull_feedback.on ? 1 : 0) + (has_weights ? 1 : 0) +
                          (plan.codecs.reply == ReplyKind::kDelta ? 1 : 0) +
                          (has_weights ? kMostMoments : 0);
  return kFixedBytes + plan.entry.segments.size() * kSegmentBytes + kMaxRuleBytes +
         arrays * plan.entry.elements * sizeof(float);
}

Buffer EncodeSnapshot(const KeyPlan& plan, const DenseState& state) {
  // All members are named, so that this does not compile once there is another. Not part of a
  // snapshot are: the roster, the open round and the answers to closed ones, which workers make
  // again by their pushes, and what is only remembered to answer faster.
  const auto& [places, parts, monitor, init_root, last_init, last_step, last_reply, last_failure,
               round, pushed_before, told, digests] = state;
  const auto& [residual, previous_learning_rate, weights, replica, moments, weights_step, rule,
               segments] = parts;
  // Without a residual or a replica nothing is ever found.
  const auto [num_over, last_residual, has_acted, wants_uncompressed] =
      plan.codecs.pull_has_memory() ? monitor.findings() : LinkMonitor::Findings();
  const std::string text = rule != nullptr ? rule->spec.text() : std::string();
  const size_t floats = residual.size() + weights.size() + replica.size() + moments.size();
  const size_t arrays_at = kFixedBytes + segments.size() * kSegmentBytes + Padded(text.size());
  Buffer buffer = Buffer::Allocate(arrays_at + floats * sizeof(float));
  const MutableByteSpan out = buffer.mutable_span();
  std::memset(out.data(), 0, arrays_at);
  StoreLittle<uint32_t>(out, kMagicAt, kMagic);
  StoreLittle<uint32_t>(out, kNumSegmentsAt, static_cast<uint32_t>(segments.size()));
  StoreLittle<uint64_t>(out, kLastStepAt, last_step);
  StoreLittle<uint64_t>(out, kWeightsStepAt, weights_step);
  StoreLittle<int32_t>(out, kInitRootAt, init_root);
  StoreLittle<uint32_t>(out, kLastInitAt, last_init);
  StoreLittle<float>(out, kPreviousRateAt, previous_learning_rate);
  StoreLittle<uint32_t>(out, kRuleBytesAt, static_cast<uint32_t>(text.size()));
  StoreLittle<uint32_t>(out, kNumOverAt, static_cast<uint32_t>(num_over));
  StoreLittle<uint32_t>(out, kGuardAt, (has_acted ? 1u : 0u) | (wants_uncompressed ? 2u : 0u));
  StoreLittle<double>(out, kLastResidualAt, last_residual);
  StoreLittle<uint64_t>(out, kResidualAt, residual.size());
  StoreLittle<uint64_t>(out, kWeightsAt, weights.size());
  StoreLittle<uint64_t>(out, kReplicaAt, replica.size());
  StoreLittle<uint64_t>(out, kMomentsAt, moments.size());
  size_t at = kFixedBytes;
  for (const SegmentState& segment : segments) {
    const auto& [updates, has_weights] = segment;
    StoreLittle<uint64_t>(out, at, updates);
    StoreLittle<uint64_t>(out, at + 8, has_weights ? 1 : 0);
    at += kSegmentBytes;
  }
  if (!text.empty()) std::memcpy(out.data() + at, text.data(), text.size());
  Writer writer(out, arrays_at);
  writer.Put(residual);
  writer.Put({weights.begin(), weights.size()});
  writer.Put(replica);
  writer.Put(moments);
  return buffer;
}

namespace {

// Takes over what the monitor of a key had found.
void ApplyFindings(const KeyPlan& plan, QualityWatch* quality, ByteSpan bytes, DenseState* state) {
  if (!plan.codecs.pull_has_memory()) return;
  const auto guard = LoadLittle<uint32_t>(bytes, kGuardAt);
  if (!state->monitor.is_on()) state->monitor.Begin(quality, plan.entry, plan.name);
  state->monitor.set_findings({.num_over = static_cast<int>(std::min(
                                   LoadLittle<uint32_t>(bytes, kNumOverAt), uint32_t{1} << 30)),
                               .last_residual = LoadLittle<double>(bytes, kLastResidualAt),
                               .has_acted = (guard & 1) != 0,
                               .wants_uncompressed = (guard & 2) != 0});
}

}  // namespace

absl::Status ApplySnapshot(const KeyPlan& plan, QualityWatch* quality, ByteSpan bytes,
                           DenseState* state) {
  const uint64_t n = plan.entry.elements;
  const size_t num_segments = state->parts.segments.size();
  if (bytes.size() < kFixedBytes || LoadLittle<uint32_t>(bytes, kMagicAt) != kMagic) {
    return InvalidArgument("snapshot: %d bytes that are none", bytes.size());
  }
  if (const auto segments = LoadLittle<uint32_t>(bytes, kNumSegmentsAt); segments != num_segments) {
    return InvalidArgument("snapshot: %d segments, not %d", segments, num_segments);
  }
  const auto rule_bytes = LoadLittle<uint32_t>(bytes, kRuleBytesAt);
  if (rule_bytes > kMaxRuleBytes)
    return InvalidArgument("snapshot: a rule of %d bytes", rule_bytes);
  uint64_t sizes[4];
  for (size_t i = 0; i < 4; ++i) sizes[i] = LoadLittle<uint64_t>(bytes, kResidualAt + 8 * i);
  const bool may_be[4] = {plan.codecs.pull_feedback.on, plan.rule != nullptr,
                          plan.codecs.reply == ReplyKind::kDelta, plan.rule != nullptr};
  uint64_t floats = 0;
  for (size_t i = 0; i < 4; ++i) {
    const uint64_t most = i == 3 ? kMostMoments * n : n;
    const bool fits = sizes[i] == 0 || (may_be[i] && sizes[i] <= most && sizes[i] % n == 0);
    if (!fits) return InvalidArgument("snapshot: array %d of %d elements", i, sizes[i]);
    floats += sizes[i];
  }
  const size_t text_at = kFixedBytes + num_segments * kSegmentBytes;
  const size_t arrays_at = text_at + Padded(rule_bytes);
  if (bytes.size() != arrays_at + floats * sizeof(float)) {
    return InvalidArgument("snapshot: %d bytes, expected %d", bytes.size(),
                           arrays_at + floats * sizeof(float));
  }
  const auto last_step = LoadLittle<uint64_t>(bytes, kLastStepAt);
  const auto weights_step = LoadLittle<uint64_t>(bytes, kWeightsStepAt);
  if (last_step > kMaxStep || weights_step > last_step) {
    return InvalidArgument("snapshot: step %d with weights of step %d", last_step, weights_step);
  }
  StateParts parts = MakeStateParts(plan);
  if (rule_bytes > 0) {
    if (!HasPart(plan, parts, StatePart::kRule)) return InvalidArgument("snapshot: a rule");
    BDN_RETURN_IF_ERROR(
        SetPart(plan, StatePart::kRule, 0, bytes.subspan(text_at, rule_bytes), &parts));
  }
  for (size_t i = 0; i < num_segments; ++i) {
    const size_t at = kFixedBytes + i * kSegmentBytes;
    const auto updates = LoadLittle<uint64_t>(bytes, at);
    if (updates > kMaxStep) return InvalidArgument("snapshot: %d updates", updates);
    parts.segments[i] = {updates, LoadLittle<uint64_t>(bytes, at + 8) != 0};
  }
  const bool has_weights = std::ranges::any_of(
      parts.segments, [](const SegmentState& segment) { return segment.has_weights; });
  const bool lacks = sizes[1] == 0 || (may_be[2] && sizes[2] == 0);
  if (has_weights && lacks) return InvalidArgument("snapshot: weights that are set and not there");
  parts.previous_learning_rate = LoadLittle<float>(bytes, kPreviousRateAt);
  if (!std::isfinite(parts.previous_learning_rate)) {
    return InvalidArgument("snapshot: learning rate %g", parts.previous_learning_rate);
  }
  parts.weights_step = weights_step;
  size_t at = arrays_at;
  const auto take = [&](std::span<float> values) {
    for (float& value : values) {
      value = LoadLittle<float>(bytes, at);
      at += sizeof(float);
    }
  };
  parts.residual.resize(sizes[0]);
  take(parts.residual);
  parts.weights.Resize(sizes[1]);
  if (sizes[1] > 0) take({parts.weights.Mutable(), sizes[1]});
  parts.replica.resize(sizes[2]);
  take(parts.replica);
  parts.moments.resize(sizes[3]);
  take(parts.moments);
  state->parts = std::move(parts);
  const auto root = LoadLittle<int32_t>(bytes, kInitRootAt);
  // Inits of a worker that is lost are nobody's to repeat; another counts its own anew.
  const bool is_here = root >= 0 && state->places->OfRank(root).has_value();
  state->init_root = is_here ? root : -1;
  state->last_init = is_here ? LoadLittle<uint32_t>(bytes, kLastInitAt) : 0;
  state->last_step = last_step;
  ApplyFindings(plan, quality, bytes, state);
  return absl::OkStatus();
}

}  // namespace bdn
