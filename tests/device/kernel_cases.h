#ifndef BANDONEON_TESTS_DEVICE_KERNEL_CASES_H_
#define BANDONEON_TESTS_DEVICE_KERNEL_CASES_H_

#include <memory>
#include <string>
#include <vector>

#include "compressors/codec_spec.h"
#include "device/codecs/device_codec.h"
#include "tests/compressors/codec_cases.h"

// The codecs of the host's suite that have kernels: a codec that gets some is among them by that
// alone.

namespace bdn {

inline std::shared_ptr<const Codec> Parse(const std::string& spec) {
  return ParseCodecSpec(spec)->codec;
}

inline bool HasKernels(const std::string& spec) { return MakeDeviceCodec(*Parse(spec)).ok(); }

inline std::vector<CodecCase> CasesWithKernels() {
  std::vector<CodecCase> cases;
  for (const CodecCase& codec : kCodecs) {
    if (HasKernels(codec.spec)) cases.push_back(codec);
  }
  return cases;
}

}  // namespace bdn

#endif  // BANDONEON_TESTS_DEVICE_KERNEL_CASES_H_
