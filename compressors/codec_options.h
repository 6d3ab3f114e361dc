#ifndef BANDONEON_COMPRESSORS_CODEC_OPTIONS_H_
#define BANDONEON_COMPRESSORS_CODEC_OPTIONS_H_

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "compressors/codec.h"

// The table of codecs: names, options, and how each is built from the options' text. Internal to
// compressors/.

namespace bdn {

// The values of a codec's options, in the order of its rows. `Fail` marks the first bad one.
class OptionValues {
 public:
  explicit OptionValues(std::span<const std::string_view> text) : text_(text) {}

  // The value of option i; marks it bad where the text is not of that form or out of range.
  size_t Whole(size_t i, size_t least, size_t most, size_t multiple_of = 1);
  // least < value <= most.
  double Real(size_t i, double above, double most);
  // The place of the value among `names`.
  size_t OneOf(size_t i, std::span<const char* const> names);
  bool Flag(size_t i);

  bool ok() const { return bad_ < 0; }
  size_t bad() const { return static_cast<size_t>(bad_); }

 private:
  void Fail(size_t i) {
    if (bad_ < 0) bad_ = static_cast<int>(i);
  }

  const std::span<const std::string_view> text_;
  int bad_ = -1;
};

struct OptionRow {
  const char* name;
  const char* default_value;  // null: must be given
  const char* expected;
};

struct CodecRow {
  const char* name;
  std::span<const OptionRow> options;
  const char* help;
  // Not read where `values` went bad.
  std::shared_ptr<const Codec> (*make)(OptionValues& values);
};

std::span<const CodecRow> CodecRows();

// "ratio=0.01": the shortest decimal that reads back as the same double.
std::string RealOption(const char* name, double value);
// "topk(ratio=0.01,select=sampled)", or the name alone where no option is set.
std::string SpecText(const char* name, std::span<const std::string> options);

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_CODEC_OPTIONS_H_
