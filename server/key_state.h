#ifndef BANDONEON_SERVER_KEY_STATE_H_
#define BANDONEON_SERVER_KEY_STATE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/cluster/catalogue.h"
#include "common/link/key_codecs.h"
#include "common/wire/frame.h"
#include "server/round.h"
#include "server/update_rule.h"

namespace bdn {

// What was declared of a key, ready for use. Immutable; shared by copies of the state.
struct KeyPlan {
  KeyEntry entry;
  std::string name;        // of its first tensor, for errors
  uint64_t name_hash = 0;  // for Draw
  DType sum_dtype = DType::kFloat32;
  KeyCodecs codecs;
  std::unique_ptr<const UpdateRule> rule;  // null: the reply is the mean
};

// InvalidArgument names the tensor and what is wrong with its specs or rule. For broadcast keys the
// codecs and the rule stay null.
absl::StatusOr<std::shared_ptr<const KeyPlan>> MakeKeyPlan(const KeyEntry& entry,
                                                           const std::string& tensor_name);

// What a server counts of one segment, and whether it has its weights.
struct SegmentState {
  uint64_t updates = 0;
  bool has_weights = false;
};

// A value set by the root and fetched by the others.
struct BroadcastValue {
  Step step = 0;  // 0: none yet
  Rank root = -1;
  Buffer bytes;
  uint32_t crc = 0;
};

// Everything a server holds of one key: a value, copyable, that can be snapshotted and compared.
struct KeyState {
  std::shared_ptr<const KeyPlan> plan;

  std::vector<float> residual;  // float32[n] once the reply's error feedback has something to keep
  float previous_learning_rate = 0;  // of the step that left the residual; 0: none yet

  // Of rules that hold the weights; empty until these are set.
  std::vector<float> weights;          // float32[n]
  std::vector<float> replica;          // float32[n] where replies are deltas
  std::vector<float> moments;          // float32[slots][n]
  std::vector<SegmentState> segments;  // as the plan's
  Step weights_step = 0;               // the step that left them as they are
  uint32_t last_init = 0;              // request number of the last part that was set
  Rank init_root = -1;

  Step last_step = 0;  // the last closed
  Frame last_reply;    // its answer, a reply or an error; sent again whenever asked
  Round round;         // the open one, if any

  BroadcastValue value;
  BroadcastValue pending_value;  // the root's next, until everybody has asked for it
  std::vector<Step> fetches;     // by rank: the highest step asked for
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_KEY_STATE_H_
