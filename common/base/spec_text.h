#ifndef BANDONEON_COMMON_BASE_SPEC_TEXT_H_
#define BANDONEON_COMMON_BASE_SPEC_TEXT_H_

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// The language of specs, in which users name codecs and update rules:
//
//   spec   = name [ "(" [ option { "," option } ] ")" ]
//   option = name "=" value
//
// Spaces are ignored. An error shows the spec, with carets under its bad part.

namespace bdn {

// One option of a codec or rule, as a row of its table.
struct SpecOption {
  const char* name;
  const char* default_value;  // null: the option must be given
  const char* expected;       // for errors and help: "ratio must be [expected]"
};

// The values of one name's options, by their index in its table: as given, otherwise the defaults.
// Not thread-safe. The spec and the table outlive it.
class OptionValues {
 public:
  // Return the value of option i. Where the text has another form, or is out of range, the returned
  // value means nothing, and the option is remembered as bad if it is the first such.
  size_t Whole(size_t i, size_t least, size_t most, size_t multiple_of = 1);
  double Real(size_t i, bool (*is_in_range)(double));
  // Returns the index of the value among `names`.
  size_t OneOf(size_t i, std::span<const char* const> names);
  bool Flag(size_t i);  // "false" or "true"

  bool ok() const { return bad_ == kNone; }

 private:
  friend class SpecReader;
  static constexpr size_t kNone = static_cast<size_t>(-1);
  struct Value {
    std::string_view text;
    std::string_view part;  // the part of the spec to be shown where the value is bad
    bool is_given = false;
  };

  OptionValues(std::string_view owner, std::span<const SpecOption> options);
  void Fail(size_t i);

  std::string_view owner_;  // a part of the spec
  std::span<const SpecOption> options_;
  std::vector<Value> values_;
  size_t bad_ = kNone;
};

// A reader that goes through a spec from left to right; the first error ends that. A part of the
// spec is a view into its text, so that an error can show where it is. Not thread-safe.
class SpecReader {
 public:
  // `kind` begins each error, e.g. "codec spec". Both arguments outlive the reader.
  SpecReader(const char* kind, std::string_view text) : kind_(kind), text_(text) {}

  // Skips spaces and returns the position of the next character.
  size_t SkipSpaces();
  // Returns the text read since position `begin`.
  std::string_view PartSince(size_t begin) const { return text_.substr(begin, at_ - begin); }
  // Reads letters, digits and underscores; returns an empty text where there are none.
  std::string_view Name();
  void GoBack(size_t begin) { at_ = begin; }

  // Steps over `wanted` if it is next, and returns whether it was.
  bool Next(char wanted);
  bool IsAtEnd() { return SkipSpaces() == text_.size(); }
  // Steps over `wanted`, or returns InvalidArgument "expected [expected]" where something else is
  // next.
  absl::Status Expect(char wanted, const std::string& expected);
  absl::Status ExpectEnd();

  // Reads the options of `owner` in parentheses, or nothing. InvalidArgument where an option is
  // unknown, given twice, or missing. REQUIRES: `owner` is a part of the spec.
  absl::StatusOr<OptionValues> Options(std::string_view owner, std::span<const SpecOption> options);
  // The two below do the same for a caller that finds options elsewhere: Defaults returns all at
  // their defaults, Option reads one that is next.
  static OptionValues Defaults(std::string_view owner, std::span<const SpecOption> options) {
    return {owner, options};
  }
  absl::Status Option(OptionValues* values);

  // Returns InvalidArgument with the message, the spec, and carets under `part`, at least one.
  absl::Status Bad(std::string_view part, const std::string& message) const;
  // Returns OK, or an error that says what the first bad option must be.
  absl::Status Check(const OptionValues& values) const;
  // Returns an error that says that `name` is no `what`, and which known one is near, or else all
  // of them.
  absl::Status Unknown(std::string_view name, const std::string& what,
                       std::span<const std::string> known) const;

 private:
  std::string_view Value();
  // Returns the next character, for errors that expected another.
  std::string_view NextCharacter();

  const char* const kind_;
  const std::string_view text_;
  size_t at_ = 0;
};

// Returns the shortest decimal that reads back as the same double: "0.01".
std::string RealText(double value);
// Returns "topk(ratio=0.01,select=sampled)", or the name alone where no option is set.
std::string SpecText(const std::string& name, std::span<const std::string> options);

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_SPEC_TEXT_H_
