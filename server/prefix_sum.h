#ifndef BANDONEON_SERVER_PREFIX_SUM_H_
#define BANDONEON_SERVER_PREFIX_SUM_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/buffer.h"
#include "common/base/bytes.h"
#include "server/key_plan.h"

namespace bdn {

// What the payloads of a step come to, added in the order in which they are given, from +0.0: the
// bits that SegmentedCodec::DecodeSum, or AddEncoded where payloads add up undecoded, makes of all
// of them at once. Payloads are held as they are until they take more room than the sum; then they
// are added to it. So at most twice the sum's bytes are held, however many payloads there are, and
// of few small ones no sum is made before the end.
//
// A value: copies share blocks, and a sum that is shared is copied before it changes. Not
// thread-safe.
class PrefixSum {
 public:
  // What all calls for one step are given.
  struct Context {
    const KeyPlan& plan;
    Step step;
    BufferPool* pool;  // borrowed; null: the heap
  };

  // The next payload. REQUIRES: it is valid.
  void Add(const Context& context, Buffer payload);
  // Adds up what is held, if it is time to.
  void Fold(const Context& context);

  // By segment: whether anybody had it. Empty before the first payload.
  const std::vector<uint8_t>& present() const { return present_; }

  // The sum of all payloads, in a block of its own or in `scratch`, until either is used again.
  // REQUIRES: payloads do not add up undecoded.
  MutableView Finish(const Context& context, std::vector<double>* scratch);
  // The payload of `scale` times the sum, as Codec::AddEncoded has it. REQUIRES: they do.
  absl::StatusOr<size_t> FinishEncoded(const Context& context, float scale,
                                       MutableByteSpan out) const;

  size_t payload_bytes() const { return payload_bytes_; }  // of those not added yet
  size_t sum_bytes() const { return sum_.size(); }

 private:
  void FoldDecoded(const Context& context);
  void FoldEncoded(const Context& context);
  std::vector<ByteSpan> Spans() const;  // of payloads_
  std::vector<ByteSpan> SpansWithSum() const;

  std::vector<Buffer> payloads_;  // not added yet
  size_t payload_bytes_ = 0;
  Buffer sum_;  // of those before: elements, before the codec transforms back, or a payload
  std::vector<uint8_t> present_;
  absl::Status error_;  // of adding up undecoded: the sum is not finite
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_PREFIX_SUM_H_
