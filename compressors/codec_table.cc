#include "compressors/codec_table.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "common/base/nearest_name.h"
#include "common/base/status.h"
#include "compressors/bf16.h"
#include "compressors/fp16.h"
#include "compressors/none.h"
#include "compressors/onebit.h"
#include "compressors/topk.h"

namespace bdn {
namespace {

using Codec = std::shared_ptr<const Compressor>;

// The only option a codec of today has. Codecs with more will take a list.
struct OptionRow {
  const char* name;           // null: no options
  const char* default_value;  // null: must be given
  const char* expected;
};

struct CodecRow {
  const char* name;
  OptionRow option;
  const char* help;
  Codec (*make)(std::string_view option_value);  // null when the value is not as expected
};

Codec MakeOneBitFrom(std::string_view text) {
  constexpr uint64_t kMostElements = uint64_t{1} << 30;
  uint64_t block = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), block);
  if (error != std::errc() || end != text.data() + text.size()) return nullptr;
  if (block % 32 != 0 || block > kMostElements) return nullptr;
  return MakeOneBit(block);
}

Codec MakeTopKFrom(std::string_view text) {
  double ratio = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ratio);
  if (error != std::errc() || end != text.data() + text.size()) return nullptr;
  if (!(ratio > 0 && ratio <= 1)) return nullptr;
  return MakeTopK(ratio);
}

constexpr std::array kCodecs = {
    CodecRow{"none",
             {},
             "no compression: float32 (float64 for float64)",
             [](std::string_view) { return MakeNone(); }},
    CodecRow{"fp16", {}, "half precision, 2x", [](std::string_view) { return MakeFp16(); }},
    CodecRow{"bf16", {}, "bfloat16, 2x", [](std::string_view) { return MakeBf16(); }},
    CodecRow{"onebit",
             {"block", "0", "0 (one scale for the whole tensor) or a multiple of 32"},
             "sign and mean magnitude, 32x less a scale for every block elements",
             MakeOneBitFrom},
    CodecRow{"topk",
             {"ratio", nullptr, "a number above 0 and at most 1"},
             "the ratio * n elements of largest magnitude, 6 bytes each",
             MakeTopKFrom},
};
constexpr const char* kErrorFeedback = "ef";

// Recursive descent over the text; the first error stops it.
class SpecParser {
 public:
  explicit SpecParser(std::string_view text) : text_(text) {}

  absl::StatusOr<LinkCodec> Parse() {
    LinkCodec link;
    const size_t begin = SkipSpaces();
    const std::string_view name = Word();
    if (name == kErrorFeedback) {
      link.error_feedback = true;
      BDN_RETURN_IF_ERROR(Expect('(', "( and a codec, as in ef(onebit)"));
      SkipSpaces();
      const size_t inner = at_;
      if (Word() == kErrorFeedback) return Bad(inner, at_, "a memory inside a memory");
      at_ = inner;
      BDN_ASSIGN_OR_RETURN(link.codec, ParseCodec());
      BDN_RETURN_IF_ERROR(Expect(')', "a closing )"));
    } else {
      at_ = begin;
      BDN_ASSIGN_OR_RETURN(link.codec, ParseCodec());
    }
    if (SkipSpaces() != text_.size()) return Bad(at_, text_.size(), "expected the end here");
    return link;
  }

 private:
  absl::StatusOr<Codec> ParseCodec() {
    const size_t begin = SkipSpaces();
    const std::string_view name = Word();
    for (const CodecRow& row : kCodecs) {
      if (name == row.name) return ParseOptions(row, begin);
    }
    std::vector<std::string> known{kErrorFeedback};
    for (const CodecRow& row : kCodecs) known.emplace_back(row.name);
    return Bad(begin, at_,
               name.empty() ? "expected a codec: " + Joined(known) : Unknown("codec", name, known));
  }

  // "" | "(" [name "=" value] ")"
  absl::StatusOr<Codec> ParseOptions(const CodecRow& row, size_t begin) {
    std::string_view value = row.option.default_value == nullptr ? "" : row.option.default_value;
    size_t value_begin = begin;
    size_t value_end = at_;
    bool given = false;
    if (SkipSpaces() < text_.size() && text_[at_] == '(') {
      ++at_;
      if (SkipSpaces() >= text_.size() || text_[at_] != ')') {
        BDN_RETURN_IF_ERROR(ParseOptionName(row));
        BDN_RETURN_IF_ERROR(Expect('=', "= and a value"));
        value_begin = SkipSpaces();
        value = Value();
        value_end = at_;
        given = true;
      }
      BDN_RETURN_IF_ERROR(Expect(')', "a closing )"));
    }
    if (!given && row.option.name != nullptr && row.option.default_value == nullptr) {
      return Bad(
          begin, value_end,
          absl::StrFormat("%s needs %s=, %s", row.name, row.option.name, row.option.expected));
    }
    Codec codec = row.make(value);
    if (codec == nullptr) {
      return Bad(value_begin, value_end,
                 absl::StrFormat("%s must be %s", row.option.name, row.option.expected));
    }
    return codec;
  }

  absl::Status ParseOptionName(const CodecRow& row) {
    const size_t begin = at_;
    const std::string_view name = Word();
    if (row.option.name == nullptr) {
      return Bad(begin, at_, absl::StrFormat("%s takes no options", row.name));
    }
    if (name == row.option.name) return absl::OkStatus();
    const std::vector<std::string> known{row.option.name};
    return Bad(begin, at_, Unknown(absl::StrFormat("option of %s", row.name), name, known));
  }

  size_t SkipSpaces() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
    return at_;
  }

  std::string_view Word() {
    const size_t begin = at_;
    while (at_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 || text_[at_] == '_')) {
      ++at_;
    }
    return text_.substr(begin, at_ - begin);
  }

  std::string_view Value() {
    const size_t begin = at_;
    while (at_ < text_.size() &&
           std::string_view("(),= \t").find(text_[at_]) == std::string_view::npos) {
      ++at_;
    }
    return text_.substr(begin, at_ - begin);
  }

  absl::Status Expect(char wanted, std::string_view expected) {
    if (SkipSpaces() < text_.size() && text_[at_] == wanted) {
      ++at_;
      return absl::OkStatus();
    }
    return Bad(at_, at_ + 1, "expected " + std::string(expected));
  }

  static std::string Joined(const std::vector<std::string>& names) {
    std::string joined;
    for (const std::string& name : names) joined += (joined.empty() ? "" : ", ") + name;
    return joined;
  }

  static std::string Unknown(std::string_view what, std::string_view name,
                             const std::vector<std::string>& known) {
    const std::string nearest = NearestName(name, known);
    return absl::StrFormat("unknown %s '%s'; ", std::string(what), std::string(name)) +
           (nearest.empty() ? "known: " + Joined(known) : "did you mean " + nearest + "?");
  }

  // The message, the spec, and carets under [begin, end), at least one.
  absl::Status Bad(size_t begin, size_t end, const std::string& message) const {
    std::string shown(text_);
    for (char& c : shown) {
      if (std::isprint(static_cast<unsigned char>(c)) == 0) c = '?';
    }
    return InvalidArgument("codec spec: %s\n  %s\n  %s%s", message, shown, std::string(begin, ' '),
                           std::string(end > begin ? end - begin : 1, '^'));
  }

  const std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

std::string LinkCodec::spec() const {
  return error_feedback ? std::string(kErrorFeedback) + "(" + codec->spec() + ")" : codec->spec();
}

absl::StatusOr<LinkCodec> ParseCodecSpec(std::string_view spec) { return SpecParser(spec).Parse(); }

std::string DescribeCodecs() {
  std::string text;
  for (const CodecRow& row : kCodecs) {
    std::string form = row.name;
    if (row.option.name != nullptr) {
      form += absl::StrFormat("(%s=%s)", row.option.name,
                              row.option.default_value == nullptr ? "R" : row.option.default_value);
    }
    text += absl::StrFormat("  %-16s %s", form, row.help);
    if (row.option.name != nullptr) {
      text += absl::StrFormat("; %s is %s", row.option.name, row.option.expected);
    }
    text += "\n";
  }
  return text +
         "  ef(CODEC)        the codec with error feedback: what it misses goes into the next "
         "step\n";
}

}  // namespace bdn
