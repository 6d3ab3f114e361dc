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
#include "worker/pipeline/guess_watch.h"
#include "worker/pipeline/replica.h"

// The data on which the stages of the pipeline work.

namespace bdn {

// The declaration of a key, parsed and ready for use. Constant once it is made.
struct DeclaredKey {
  KeyEntry entry;
  std::vector<std::string> tensor_names;  // by segment
  KeyLink link;
  NodeId server = 0;  // the server that sums the key
  uint32_t catalogue_version = 0;
  bool runs_on_device = false;  // the result of RunsOnDevice for this key

  // Returns whether its pushes keep a residual or a momentum.
  bool has_memory() const { return link.codecs.push_feedback.on || entry.momentum > 0; }
};

// The state that this worker's end of a key's links keeps from step to step.
struct LinkMemory {
  std::vector<float> residual;       // float32[elements], or empty before its first use
  float previous_learning_rate = 0;  // of the step that left the residual; 0: none yet
  std::vector<float> momentum;
  // The weights on which replies build, if they do; never null.
  std::shared_ptr<Replica> replica = std::make_shared<Replica>();
  // A copy of whole weights, on which no reply builds: a group may be estimated from it whose last
  // reply lacks the weights of some tensors. NaN where this worker was never told one. Null: none
  // is kept.
  std::shared_ptr<Replica> copy;
  LinkMonitor monitor;  // watches the push's error feedback
  GuessWatch guesses;   // watches what the replies do not determine
  // The device that holds residual and momentum, because the last exchange was of a tensor in its
  // memory; then the arrays above are empty. Null: the host holds them.
  CodecDevice* device = nullptr;
  size_t elements = 0;
  DeviceMemory device_residual;
  DeviceMemory device_momentum;
  // The host carries out exchanges of a device's tensor before this step, because the device's
  // memory was out. Else residual and momentum would move back and forth at each step.
  Step host_until = 0;
  // Not OK: a device failed while it changed residual or momentum, which are lost. Nothing can be
  // pushed before they are set.
  absl::Status lost;
};

// One tensor's part of an exchange, as its caller handed it over, and its result.
struct ExchangeSegment {
  bool filled = false;  // its tensor was pushed, present or absent
  bool present = false;
  MutableView data;  // null: the tensor is absent, and its result is not wanted
  // Optional: `data` is to become the sum of these, from their element `source_offset` on.
  std::shared_ptr<const PushSources> sources;
  uint64_t source_offset = 0;
  uint64_t source_elements = 0;  // of each source: those of the whole tensor
  // Optional, float32[data.n]: gets what the codec leaves out of the push.
  float* left_out = nullptr;
  float loss_scale = 1.0f;
  TicketId ticket = 0;
  // The result: no worker had a gradient.
  bool absent_everywhere = false;
  size_t guessed = 0;  // The result: so many elements of `data` are guesses of the codec.
};

// An exchange: one key at one step. It has one owner at a time: the key's queue, then a stage.
struct Exchange {
  Step step = 0;
  int32_t priority = 0;
  float weight = 1.0f;
  float learning_rate = 0.0f;
  uint32_t program_steps = 0;
  std::vector<ExchangeSegment> segments;
  // Not null: `data` lies in this device's memory, and the key has one segment.
  CodecDevice* device = nullptr;
  // Used where the host carries out a device's exchange because the device's memory is out: the
  // address in device memory that gets the result, and the host's copy that replaces it meanwhile.
  void* device_data = nullptr;
  std::vector<std::byte> staging;
  bool is_on_device() const { return device != nullptr && staging.empty(); }
  size_t num_filled = 0;
  bool is_complete() const { return num_filled == segments.size(); }

  Frame push;                           // encoded once; kept until the reply
  bool uses_memory = false;             // the push has changed the residual and the momentum
  float feedback_decay = 1.0f;          // the decay with which the push was encoded
  float replaced_learning_rate = 0.0f;  // LinkMemory's before this step
  bool counted = false;     // the server has counted the push, whatever became of its reply
  bool given_back = false;  // Its callers were told that it is late, and have their tensors back.
  int damaged_replies = 0;
  bool nonfinite = false;  // the result: some worker's gradient was not finite
  // Segments fetched so far of a replica on which the reply builds and which is not here.
  size_t segments_fetched = 0;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_PIPELINE_EXCHANGE_H_
