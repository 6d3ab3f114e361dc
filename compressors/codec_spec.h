#ifndef BANDONEON_COMPRESSORS_CODEC_SPEC_H_
#define BANDONEON_COMPRESSORS_CODEC_SPEC_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/base/spec_text.h"
#include "compressors/codec.h"

namespace bdn {

// The codec of one direction of a key, and the error feedback or delta around it.
struct LinkCodec {
  std::shared_ptr<const Codec> codec;
  bool error_feedback = false;            // ef(...)
  double decay = 1.0;                     // ef(..., decay=0.9)
  bool learning_rate_correction = false;  // ef(..., correction=lr)
  bool delta = false;                     // delta(...)

  // Returns the canonical text: it has every option that differs from its default, in the table's
  // order.
  std::string spec() const;
};

// Parses "onebit", "onebit(block=256)", "ef(topk(ratio=0.01),decay=0.9)", "delta(int4)".
// InvalidArgument shows the spec, carets under the bad part, and the text expected there or the
// nearest known name.
absl::StatusOr<LinkCodec> ParseCodecSpec(std::string_view text);
// Reads such a spec from where a longer text has been read to.
absl::StatusOr<LinkCodec> ReadLinkCodec(SpecReader& spec);

// Returns one line for each codec, for help texts and errors: its name, its options with their
// defaults, and what it does.
std::string DescribeCodecs();

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_CODEC_SPEC_H_
