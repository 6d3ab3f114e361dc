#include "compressors/codec_spec.h"

#include <array>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "compressors/codec_table.h"

namespace bdn {
namespace {

constexpr const char* kErrorFeedback = "ef";
constexpr const char* kDelta = "delta";
constexpr std::array kFeedbackOptions = {SpecOption{"decay", "1", kShareExpected},
                                         SpecOption{"correction", "none", "none or lr"}};

bool IsMemory(std::string_view name) { return name == kErrorFeedback || name == kDelta; }

// Reads a codec's name and its options.
absl::StatusOr<std::shared_ptr<const Codec>> ReadCodec(SpecReader& spec) {
  const std::string_view name = spec.Name();
  std::vector<std::string> known{kErrorFeedback, kDelta};
  for (const CodecRow& row : CodecRows()) {
    known.emplace_back(row.name);
    if (name != row.name) continue;
    BDN_ASSIGN_OR_RETURN(OptionValues values, spec.Options(name, row.options));
    std::shared_ptr<const Codec> codec = row.make(values);
    BDN_RETURN_IF_ERROR(spec.Check(values));
    return codec;
  }
  if (name.empty()) return spec.Bad(name, "expected a codec: " + absl::StrJoin(known, ", "));
  return spec.Unknown(name, "codec", known);
}

// Reads "(" codec { "," option } ")", after the name `ef` or `delta`.
absl::Status ReadMemory(SpecReader& spec, std::string_view name, LinkCodec* link) {
  link->error_feedback = name == kErrorFeedback;
  link->delta = name == kDelta;
  BDN_RETURN_IF_ERROR(spec.Expect('(', "( and a codec, as in " + std::string(name) + "(onebit)"));
  const size_t inner = spec.SkipSpaces();
  // ReadCodec would call the inner name unknown, and then suggest it.
  if (const std::string_view word = spec.Name(); IsMemory(word)) {
    return spec.Bad(word, "a memory inside a memory");
  }
  spec.GoBack(inner);
  BDN_ASSIGN_OR_RETURN(link->codec, ReadCodec(spec));
  std::span<const SpecOption> options;
  if (link->error_feedback) options = kFeedbackOptions;
  OptionValues values = SpecReader::Defaults(name, options);
  while (spec.Next(',')) BDN_RETURN_IF_ERROR(spec.Option(&values));
  BDN_RETURN_IF_ERROR(spec.Expect(')', "a closing )"));
  if (!link->error_feedback) return absl::OkStatus();
  constexpr std::array kCorrections = {"none", "lr"};
  link->decay = values.Real(0, IsShare);
  link->learning_rate_correction = values.OneOf(1, kCorrections) == 1;
  return spec.Check(values);
}

}  // namespace

std::string LinkCodec::spec() const {
  if (delta) return absl::StrFormat("%s(%s)", kDelta, codec->spec());
  if (!error_feedback) return codec->spec();
  std::string text = absl::StrFormat("%s(%s", kErrorFeedback, codec->spec());
  if (decay != 1.0) text += ",decay=" + RealText(decay);
  if (learning_rate_correction) text += ",correction=lr";
  return text + ")";
}

absl::StatusOr<LinkCodec> ReadLinkCodec(SpecReader& spec) {
  LinkCodec link;
  const size_t begin = spec.SkipSpaces();
  if (const std::string_view name = spec.Name(); IsMemory(name)) {
    BDN_RETURN_IF_ERROR(ReadMemory(spec, name, &link));
  } else {
    spec.GoBack(begin);
    BDN_ASSIGN_OR_RETURN(link.codec, ReadCodec(spec));
  }
  return link;
}

absl::StatusOr<LinkCodec> ParseCodecSpec(std::string_view text) {
  SpecReader spec("codec spec", text);
  BDN_ASSIGN_OR_RETURN(LinkCodec link, ReadLinkCodec(spec));
  BDN_RETURN_IF_ERROR(spec.ExpectEnd());
  return link;
}

std::string DescribeCodecs() {
  std::string text;
  for (const CodecRow& row : CodecRows()) {
    std::vector<std::string> options;
    std::string explained;
    for (const SpecOption& option : row.options) {
      const char* value = option.default_value == nullptr ? "R" : option.default_value;
      options.push_back(absl::StrFormat("%s=%s", option.name, value));
      explained += absl::StrFormat("; %s is %s", option.name, option.expected);
    }
    text += absl::StrFormat("  %-16s %s%s\n", SpecText(row.name, options), row.help, explained);
  }
  return text +
         "  ef(CODEC)        the codec with error feedback: "
         "what it misses goes into the next step;\n"
         "                   options: decay=1 (above 0, at most 1), correction=none or lr\n"
         "  delta(CODEC)     for weights: the codec of what changed since the last step\n"
         "  A for N; B       A for the first N steps, then B; any number of stages of one memory\n";
}

}  // namespace bdn
