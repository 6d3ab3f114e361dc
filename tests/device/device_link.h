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

// The state of a link before a step, and the array to encode. State that does not exist is empty.
struct LinkInput {
  TypedArray x;
  FeedbackOptions options;
  std::vector<float> residual;
  std::vector<float> momentum;
  std::vector<float> replica;
};

// The state of a link that an input has besides its array.
enum class Memory { kNone, kResidual, kMomentum, kReplica };
inline constexpr Memory kMemories[] = {Memory::kNone, Memory::kResidual, Memory::kMomentum,
                                       Memory::kReplica};
// Makes an input: n elements of a kind of codec_inputs.h, scaled, and state of the same kind.
LinkInput MakeInput(const std::string& kind, size_t n, DType dtype, Memory memory);

// The payload of a step, and the state of the link after it.
struct LinkOutput {
  std::vector<uint8_t> payload;
  std::vector<float> residual;
  std::vector<float> momentum;
  std::vector<float> replica;
};

// Both encode, and leave the state in `after`, whether the encoding failed or not.
absl::StatusOr<std::vector<uint8_t>> EncodeOnHost(const Codec& codec, const LinkInput& input,
                                                  const Draw& draw, LinkOutput* after);
absl::StatusOr<std::vector<uint8_t>> EncodeOnDevice(ComputeDevice& device, const Codec& codec,
                                                    const LinkInput& input, const Draw& draw,
                                                    LinkOutput* after);

// Both decode, and return the new y.
TypedArray DecodeOnHost(const Codec& codec, const std::vector<uint8_t>& payload, float scale,
                        bool adds, TypedArray y);
TypedArray DecodeOnDevice(ComputeDevice& device, const Codec& codec,
                          const std::vector<uint8_t>& payload, float scale, bool adds,
                          TypedArray y);

}  // namespace bdn

#endif  // BANDONEON_TESTS_DEVICE_DEVICE_LINK_H_
