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

// The sum of a step's payloads, added in the order in which they are given, beginning with +0.0.
// Its bits are those that SegmentedCodec::DecodeSum (or AddEncoded, where payloads add up
// undecoded) makes of all payloads at once. Payloads are held as they are until they take more
// memory than the sum would; then they are added to it. So at most twice the sum's bytes are held,
// however many payloads there are, and a few small payloads need no sum before the end.
//
// A value: copies share blocks, and a shared sum is copied before it changes. Not thread-safe.
class PrefixSum {
 public:
  // The arguments that are the same in all calls for one step.
  struct Context {
    const KeyPlan& plan;
    Step step;
    BufferPool* pool;  // borrowed; null: the heap
  };

  // Takes the next payload. REQUIRES: the payload is valid.
  void Add(const Context& context, Buffer payload);
  // Adds the held payloads to the sum, if they take enough memory for that.
  void Fold(const Context& context);

  // Returns by segment whether any payload has it. Empty before the first payload.
  const std::vector<uint8_t>& present() const { return present_; }

  // Returns the sum of all payloads, in a block of its own or in `scratch`; it is valid until
  // either is used again. REQUIRES: payloads do not add up undecoded.
  MutableView Finish(const Context& context, std::vector<double>* scratch);
  // Writes the payload of `scale` times the sum, as Codec::AddEncoded makes it, and returns its
  // bytes. REQUIRES: payloads add up undecoded.
  absl::StatusOr<size_t> FinishEncoded(const Context& context, float scale,
                                       MutableByteSpan out) const;

  size_t payload_bytes() const { return payload_bytes_; }  // of payloads not yet added
  size_t sum_bytes() const { return sum_.size(); }

 private:
  void FoldDecoded(const Context& context);
  void FoldEncoded(const Context& context);
  std::vector<ByteSpan> Spans() const;  // of payloads_
  std::vector<ByteSpan> SpansWithSum() const;

  std::vector<Buffer> payloads_;  // not yet added
  size_t payload_bytes_ = 0;
  // The sum of the payloads before those: elements before the codec's inverse transform, or, where
  // payloads add up undecoded, a payload.
  Buffer sum_;
  std::vector<uint8_t> present_;
  absl::Status error_;  // not OK: adding undecoded payloads gave a sum that is not finite
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_PREFIX_SUM_H_
