#ifndef BANDONEON_WORKER_EXCHANGE_H_
#define BANDONEON_WORKER_EXCHANGE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/cluster/catalogue.h"
#include "common/cluster/rule_spec.h"
#include "common/wire/frame.h"
#include "compressors/key_codecs.h"

namespace bdn {

using TicketId = uint64_t;

// One tensor's part of an exchange, as its caller handed it over.
struct ExchangeSegment {
  bool filled = false;  // its tensor was pushed, present or absent
  bool present = false;
  MutableView data;           // null: absent, and the result is not wanted
  float* left_out = nullptr;  // float32[data.n]: where what the codec leaves out goes, if wanted
  float loss_scale = 1.0f;
  TicketId ticket = 0;
  // The result.
  bool absent_everywhere = false;
};

// One key at one step, on its way through the stages. One owner at a time: the queue, then a stage.
struct Exchange {
  Step step = 0;
  int priority = 0;
  float weight = 1.0f;
  float learning_rate = 0.0f;
  std::vector<ExchangeSegment> segments;
  size_t num_filled = 0;
  bool is_complete() const { return num_filled == segments.size(); }

  Frame push;                           // encoded once; kept until the reply
  bool uses_memory = false;             // the push advanced the residual and the momentum
  float feedback_decay = 1.0f;          // as the push used it
  float replaced_learning_rate = 0.0f;  // the key's, before this step
  bool counted = false;                 // by the server, whatever became of its reply here
  int damaged = 0;                      // replies that came so
  bool nonfinite = false;               // the result
  size_t fetched = 0;                   // segments whose replica was fetched for want of its base
};

// What this worker holds of one key. The queue is the worker's; everything else belongs to the
// stage that holds the front exchange.
struct WorkerKey {
  KeyEntry entry;
  NodeId server = 0;                      // its owner
  std::vector<std::string> tensor_names;  // by segment
  uint64_t name_hash = 0;                 // of the first, for Draw
  uint32_t catalogue_version = 0;
  RuleSpec rule;
  KeyCodecs codecs;
  bool has_memory() const { return codecs.push_feedback.on || entry.momentum > 0; }

  std::vector<float> residual;       // float32[elements] once there is one
  float previous_learning_rate = 0;  // of the step that left the residual; 0: none yet
  std::vector<float> momentum;
  // Where replies build on it: what every worker holds of the servers' weights, float32[elements],
  // and the step that left it so. None yet: it is fetched when the first reply comes.
  std::vector<float> replica;
  std::optional<Step> replica_step;
  std::set<size_t> fetched;  // segments of a replica that is being fetched
  Step fetched_step = 0;     // and the step that left them so
  uint64_t inits = 0;        // parts of the servers' state that this worker has set
  uint64_t fetches = 0;      // and has asked for

  std::deque<std::unique_ptr<Exchange>> queue;  // by step; the front may be in flight
  bool in_flight = false;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_EXCHANGE_H_
