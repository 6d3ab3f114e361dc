#ifndef BANDONEON_COMPRESSORS_CODEC_TABLE_H_
#define BANDONEON_COMPRESSORS_CODEC_TABLE_H_

#include <memory>
#include <span>

#include "common/base/spec_text.h"
#include "compressors/codec.h"

// The table of codecs: names, options, and how each is built of its options. Internal to
// compressors/ and device/, whose codecs have the same options.

namespace bdn {

struct CodecRow {
  const char* name;
  std::span<const SpecOption> options;
  const char* help;
  // What it returns is not read where `values` went bad.
  std::shared_ptr<const Codec> (*make)(OptionValues& values);
};

std::span<const CodecRow> CodecRows();

// A share of something, as `ratio` and `decay` are.
inline constexpr const char* kShareExpected = "a number above 0 and at most 1";
inline bool IsShare(double value) { return value > 0 && value <= 1; }

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_CODEC_TABLE_H_
