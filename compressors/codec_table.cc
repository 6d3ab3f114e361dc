#include "compressors/codec_table.h"

#include <array>
#include <cctype>
#include <utility>
#include <vector>

#include "common/base/nearest_name.h"
#include "common/base/status.h"
#include "compressors/codec_options.h"

namespace bdn {
namespace {

using Codec = std::shared_ptr<const Codec>;

constexpr const char* kErrorFeedback = "ef";
constexpr const char* kDelta = "delta";
constexpr std::array kFeedbackOptions = {OptionRow{"decay", "1", "a number above 0 and at most 1"},
                                         OptionRow{"correction", "none", "none or lr"}};

bool IsMemory(std::string_view name) { return name == kErrorFeedback || name == kDelta; }

// Recursive descent over the text; the first error stops it.
class SpecParser {
 public:
  explicit SpecParser(std::string_view text) : text_(text) {}

  absl::StatusOr<LinkCodec> Parse() {
    LinkCodec link;
    const size_t begin = SkipSpaces();
    const std::string_view name = Word();
    if (IsMemory(name)) {
      BDN_RETURN_IF_ERROR(ParseMemory(name, &link));
    } else {
      at_ = begin;
      BDN_ASSIGN_OR_RETURN(link.codec, ParseCodec());
    }
    if (SkipSpaces() != text_.size()) return Bad(at_, text_.size(), "expected the end here");
    return link;
  }

 private:
  // An option's text and where it stands.
  struct Given {
    std::string_view value;
    size_t begin = 0;
    size_t end = 0;
    bool given = false;
  };

  // "(" codec {"," option} ")"
  absl::Status ParseMemory(std::string_view name, LinkCodec* link) {
    link->error_feedback = name == kErrorFeedback;
    link->delta = name == kDelta;
    BDN_RETURN_IF_ERROR(Expect('(', "( and a codec, as in " + std::string(name) + "(onebit)"));
    const size_t inner = SkipSpaces();
    if (IsMemory(Word())) return Bad(inner, at_, "a memory inside a memory");
    at_ = inner;
    BDN_ASSIGN_OR_RETURN(link->codec, ParseCodec());
    const std::span<const OptionRow> rows = link->error_feedback
                                                ? std::span<const OptionRow>(kFeedbackOptions)
                                                : std::span<const OptionRow>();
    std::vector<Given> given = Defaults(rows);
    while (Next(',')) BDN_RETURN_IF_ERROR(ParseOption(name, rows, &given));
    BDN_RETURN_IF_ERROR(Expect(')', "a closing )"));
    if (rows.empty()) return absl::OkStatus();
    const std::vector<std::string_view> text = Texts(given);
    OptionValues values(text);
    constexpr std::array kCorrections = {"none", "lr"};
    link->decay = values.Real(0, 0, 1);
    link->learning_rate_correction = values.OneOf(1, kCorrections) == 1;
    return values.ok() ? absl::OkStatus() : BadOption(rows, given, values.bad());
  }

  absl::StatusOr<Codec> ParseCodec() {
    const size_t begin = SkipSpaces();
    const std::string_view name = Word();
    std::vector<std::string> known{kErrorFeedback, kDelta};
    for (const CodecRow& row : CodecRows()) {
      if (name == row.name) return ParseOptions(row, begin);
      known.emplace_back(row.name);
    }
    return Bad(begin, at_,
               name.empty() ? "expected a codec: " + Joined(known) : Unknown("codec", name, known));
  }

  // "" | "(" [option {"," option}] ")"
  absl::StatusOr<Codec> ParseOptions(const CodecRow& row, size_t begin) {
    std::vector<Given> given = Defaults(row.options);
    for (Given& option : given) option.begin = begin, option.end = at_;
    if (Next('(') && !Next(')')) {
      do {
        BDN_RETURN_IF_ERROR(ParseOption(row.name, row.options, &given));
      } while (Next(','));
      BDN_RETURN_IF_ERROR(Expect(')', "a closing )"));
    }
    for (size_t i = 0; i < given.size(); ++i) {
      if (given[i].given || row.options[i].default_value != nullptr) continue;
      return Bad(begin, at_,
                 absl::StrFormat("%s needs %s=, %s", row.name, row.options[i].name,
                                 row.options[i].expected));
    }
    const std::vector<std::string_view> text = Texts(given);
    OptionValues values(text);
    Codec codec = row.make(values);
    if (!values.ok()) return BadOption(row.options, given, values.bad());
    return codec;
  }

  static std::vector<Given> Defaults(std::span<const OptionRow> rows) {
    std::vector<Given> given(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].default_value != nullptr) given[i].value = rows[i].default_value;
    }
    return given;
  }

  static std::vector<std::string_view> Texts(const std::vector<Given>& given) {
    std::vector<std::string_view> text;
    for (const Given& option : given) text.push_back(option.value);
    return text;
  }

  absl::Status BadOption(std::span<const OptionRow> rows, const std::vector<Given>& given,
                         size_t i) const {
    return Bad(given[i].begin, given[i].end,
               absl::StrFormat("%s must be %s", rows[i].name, rows[i].expected));
  }

  // name "=" value
  absl::Status ParseOption(std::string_view owner, std::span<const OptionRow> rows,
                           std::vector<Given>* given) {
    const size_t begin = SkipSpaces();
    const std::string_view name = Word();
    const std::string of(owner);
    if (rows.empty()) return Bad(begin, at_, absl::StrFormat("%s takes no options", of));
    std::vector<std::string> known;
    for (size_t i = 0; i < rows.size(); ++i) {
      known.emplace_back(rows[i].name);
      if (name != rows[i].name) continue;
      Given& option = (*given)[i];
      if (option.given) return Bad(begin, at_, absl::StrFormat("%s is given twice", rows[i].name));
      BDN_RETURN_IF_ERROR(Expect('=', "= and a value"));
      option.given = true;
      option.begin = SkipSpaces();
      option.value = Value();
      option.end = at_;
      return absl::OkStatus();
    }
    return Bad(begin, at_, Unknown(absl::StrFormat("option of %s", of), name, known));
  }

  // Steps over `wanted` where it is next.
  bool Next(char wanted) {
    if (SkipSpaces() == text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
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
    if (Next(wanted)) return absl::OkStatus();
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
  if (delta) return absl::StrFormat("%s(%s)", kDelta, codec->spec());
  if (!error_feedback) return codec->spec();
  std::string text = absl::StrFormat("%s(%s", kErrorFeedback, codec->spec());
  if (decay != 1.0) text += "," + RealOption("decay", decay);
  if (learning_rate_correction) text += ",correction=lr";
  return text + ")";
}

absl::StatusOr<LinkCodec> ParseCodecSpec(std::string_view spec) { return SpecParser(spec).Parse(); }

std::string DescribeCodecs() {
  std::string text;
  for (const CodecRow& row : CodecRows()) {
    std::vector<std::string> options;
    std::string explained;
    for (const OptionRow& option : row.options) {
      const char* value = option.default_value == nullptr ? "R" : option.default_value;
      options.push_back(absl::StrFormat("%s=%s", option.name, value));
      explained += absl::StrFormat("; %s is %s", option.name, option.expected);
    }
    text += absl::StrFormat("  %-16s %s%s\n", SpecText(row.name, options), row.help, explained);
  }
  return text +
         "  ef(CODEC)        the codec with error feedback: what it misses goes into the next step;\n"
         "                   options: decay=1 (above 0, at most 1), correction=none or lr\n"
         "  delta(CODEC)     for weights: the codec of what changed since the last step\n"
         "  A for N; B       A for the first N steps, then B; any number of stages of one memory\n";
}

}  // namespace bdn
