#ifndef BANDONEON_WORKER_PIPELINE_EXCHANGE_H_
#define BANDONEON_WORKER_PIPELINE_EXCHANGE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/cluster/catalogue.h"
#include "common/wire/frame.h"
#include "link/key_link.h"
#include "link/link_monitor.h"
#include "worker/client.h"
#include "worker/device/codec_device.h"

// What the stages of the pipeline work on: plain data.

namespace bdn {

// What was declared of a key, ready for use. Const once it is made.
struct DeclaredKey {
  KeyEntry entry;
  std::vector<std::string> tensor_names;  // by segment
  KeyLink link;
  NodeId server = 0;  // which sums it
  uint32_t catalogue_version = 0;
  bool runs_on_device = false;  // RunsOnDevice of it

  bool has_memory() const { return link.codecs.push_feedback.on || entry.momentum > 0; }
};

// What this worker's end of a key's links remembers from step to step.
struct LinkMemory {
  std::vector<float> residual;       // float32[elements] once there is one
  float previous_learning_rate = 0;  // of the step that left the residual; 0: none yet
  std::vector<float> momentum;
  // Where replies build on it: what every worker holds of the servers' weights, float32[elements],
  // and the step that left it so. None yet: it is fetched when the first reply comes.
  std::vector<float> replica;
  std::optional<Step> replica_step;
  LinkMonitor monitor;  // of what the push's error feedback keeps
  // Where an exchange of a device's tensor was the last: residual and momentum are there, and the
  // arrays above are empty.
  CodecDevice* device = nullptr;
  size_t elements = 0;
  DeviceMemory device_residual;
  DeviceMemory device_momentum;
  // Exchanges of a device's tensor before this step are carried out by the host, as the device's memory was out:
  // residual and momentum do not move back and forth at each step.
  Step host_until = 0;
  // Not OK: a device failed in the middle of changing residual or momentum, which are lost. Nothing can be
  // pushed then before they are set.
  absl::Status lost;
};

// One tensor's part of an exchange, as its caller handed it over.
struct ExchangeSegment {
  bool filled = false;  // its tensor was pushed, present or absent
  bool present = false;
  MutableView data;  // null: absent, and the result is not wanted
  // Optional: data is to become the sum of these, from element `source_offset` on.
  std::shared_ptr<const PushSources> sources;
  uint64_t source_offset = 0;
  uint64_t source_elements = 0;  // of the tensor
  float* left_out = nullptr;     // float32[data.n]: where what the codec leaves out goes, if wanted
  float loss_scale = 1.0f;
  TicketId ticket = 0;
  // The result.
  bool absent_everywhere = false;
};

// One key at one step. One owner at a time: the key's queue, then a stage.
struct Exchange {
  Step step = 0;
  int32_t priority = 0;
  float weight = 1.0f;
  float learning_rate = 0.0f;
  uint32_t program_steps = 0;
  std::vector<ExchangeSegment> segments;
  // Not null: data lies in this device's memory, and the key is of one segment.
  CodecDevice* device = nullptr;
  // Of a device's exchange that is carried out by the host, as memory there was out: where its result
  // goes, and what stands for it meanwhile.
  void* device_data = nullptr;
  std::vector<std::byte> staging;
  bool is_on_device() const { return device != nullptr && staging.empty(); }
  size_t num_filled = 0;
  bool is_complete() const { return num_filled == segments.size(); }

  Frame push;                           // encoded once; kept until the reply
  bool uses_memory = false;             // the push advanced the residual and the momentum
  float feedback_decay = 1.0f;          // as the push used it
  float replaced_learning_rate = 0.0f;  // the memory's, before this step
  bool counted = false;                 // by the server, whatever became of its reply here
  bool given_back = false;  // its callers were told that it is late, and have their tensors again
  int damaged_replies = 0;
  bool nonfinite = false;       // the result
  size_t segments_fetched = 0;  // of the replica, where the reply builds on one that is not here
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_PIPELINE_EXCHANGE_H_
