#ifndef BANDONEON_TESTS_DEVICE_DEVICE_LINK_H_
#define BANDONEON_TESTS_DEVICE_DEVICE_LINK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "compressors/codec.h"
#include "device/codecs/device_codec.h"
#include "tests/compressors/codec_inputs.h"
#include "tests/device/kernel_cases.h"

// A step of one key, done on the host and on a device, with everything that a step can change.

namespace bdn {

struct LinkInput {
  TypedArray x;
  FeedbackOptions options;
  // Empty where there is none.
  std::vector<float> residual;
  std::vector<float> momentum;
  std::vector<float> replica;
};

enum class Memory { kNone, kResidual, kMomentum, kReplica };
inline constexpr Memory kMemories[] = {Memory::kNone, Memory::kResidual, Memory::kMomentum,
                                       Memory::kReplica};
// n of a kind of codec_inputs.h, scaled, and a memory of the same kind.
LinkInput MakeInput(const std::string& kind, size_t n, DType dtype, Memory memory);

struct LinkOutput {
  std::vector<uint8_t> payload;
  std::vector<float> residual;
  std::vector<float> momentum;
  std::vector<float> replica;
};

// Both leave in `after` what the memories are, whether the encoding failed or not.
absl::StatusOr<std::vector<uint8_t>> EncodeOnHost(const Codec& codec, const LinkInput& input,
                                                  const Draw& draw, LinkOutput* after);
absl::StatusOr<std::vector<uint8_t>> EncodeOnDevice(ComputeDevice& device, const Codec& codec,
                                                    const LinkInput& input, const Draw& draw,
                                                    LinkOutput* after);

// What y becomes.
TypedArray DecodeOnHost(const Codec& codec, const std::vector<uint8_t>& payload, float scale,
                        bool adds, TypedArray y);
TypedArray DecodeOnDevice(ComputeDevice& device, const Codec& codec,
                          const std::vector<uint8_t>& payload, float scale, bool adds,
                          TypedArray y);

}  // namespace bdn

#endif  // BANDONEON_TESTS_DEVICE_DEVICE_LINK_H_
