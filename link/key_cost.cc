#include "link/key_cost.h"

#include <algorithm>

#include "common/cluster/server_bytes.h"

namespace bdn {
namespace {

size_t LongestPayload(const std::vector<CodecStage>& stages, const SegmentedCodec& last) {
  size_t most = last.MaxEncodedBytes();
  for (const CodecStage& stage : stages) most = std::max(most, stage.codec->MaxEncodedBytes());
  return most;
}

// Returns whether every reply is the very array of the weights, so that it needs no memory of its
// own.
bool TellsWeightsAsTheyLie(const KeyCodecs& codecs) {
  return codecs.reply == ReplyKind::kWeights && codecs.pull->num_segments() == 1 &&
         codecs.pull->codec().id() == CodecId::kNone;
}

}  // namespace

KeyCost CostOfKey(const KeyEntry& key, const RuleSpec& rule, const KeyCodecs& codecs,
                  size_t workers) {
  if (key.kind == KeyKind::kBroadcast) {
    // One value and its successor, of any element type.
    return {.state = 2 * key.elements * DTypeSize(key.dtype)};
  }
  if (key.kind == KeyKind::kRows) return {.state = ServerBytes(key)};
  const uint64_t array = key.elements * sizeof(float);
  const uint64_t arrays = (rule.holds_weights() ? 1 + rule.moments() : 0) +
                          (codecs.reply == ReplyKind::kDelta ? 1 : 0) +
                          (codecs.pull_feedback.on ? 1 : 0);
  const uint64_t push = LongestPayload(codecs.push_stages, *codecs.push);
  uint64_t sum = key.dtype == DType::kFloat64 ? 2 * array : array;
  if (codecs.adds_encoded) sum = std::max(sum, push);
  const uint64_t all_pushes = (std::max<uint64_t>(workers, 1) - 1) * push;
  KeyCost cost;
  cost.state = arrays * array;
  cost.reply = TellsWeightsAsTheyLie(codecs) ? 0 : LongestPayload(codecs.pull_stages, *codecs.pull);
  // Payloads are added to the sum once they take more than an eighth of it (PrefixSum); one more
  // may just have come.
  cost.open = std::min(all_pushes, sum + sum / 8 + push);
  cost.late = all_pushes - cost.open;
  return cost;
}

}  // namespace bdn
