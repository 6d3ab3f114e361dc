#ifndef BANDONEON_COMPRESSORS_CODEC_TABLE_H_
#define BANDONEON_COMPRESSORS_CODEC_TABLE_H_

#include <memory>
#include <span>

#include "common/base/spec_text.h"
#include "compressors/codec.h"

// The table of codecs: names, options, and how each is built from its options. Internal to
// compressors/ and device/, whose codecs have the same options.

namespace bdn {

// A codec in the table.
struct CodecRow {
  const char* name;
  std::span<const SpecOption> options;
  const char* help;
  // Makes the codec. The caller does not read the result where `values` went bad.
  std::shared_ptr<const Codec> (*make)(OptionValues& values);
};

std::span<const CodecRow> CodecRows();

// The expectation for a share of something, such as `ratio` and `decay`, and its test.
inline constexpr const char* kShareExpected = "a number above 0 and at most 1";
inline bool IsShare(double value) { return value > 0 && value <= 1; }

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_CODEC_TABLE_H_
