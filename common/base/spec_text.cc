#include "common/base/spec_text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdint>

#include "absl/strings/str_join.h"
#include "common/base/nearest_name.h"
#include "common/base/status.h"

namespace bdn {
namespace {

bool IsSpace(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }
bool IsNameCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}
bool IsValueCharacter(char c) {
  return !IsSpace(c) && std::string_view("(),=;").find(c) == std::string_view::npos;
}

// Parses all of the text as a number; returns false where anything is left.
template <typename Number>
bool ParseAll(std::string_view text, Number* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

OptionValues::OptionValues(std::string_view owner, std::span<const SpecOption> options)
    : owner_(owner), options_(options), values_(options.size()) {
  for (size_t i = 0; i < options.size(); ++i) {
    if (options[i].default_value != nullptr) values_[i].text = options[i].default_value;
    // An error about an option that is not given shows its owner.
    values_[i].part = owner;
  }
}

void OptionValues::Fail(size_t i) {
  if (ok()) bad_ = i;
}

size_t OptionValues::Whole(size_t i, size_t least, size_t most, size_t multiple_of) {
  uint64_t value = 0;
  const bool is_good = ParseAll(values_[i].text, &value) && value >= least && value <= most &&
                       value % multiple_of == 0;
  if (!is_good) Fail(i);
  return value;
}

double OptionValues::Real(size_t i, bool (*is_in_range)(double)) {
  double value = 0;
  if (!ParseAll(values_[i].text, &value) || !is_in_range(value)) Fail(i);
  return value;
}

size_t OptionValues::OneOf(size_t i, std::span<const char* const> names) {
  const auto found = std::find(names.begin(), names.end(), values_[i].text);
  if (found == names.end()) Fail(i);
  return static_cast<size_t>(found - names.begin());
}

bool OptionValues::Flag(size_t i) {
  constexpr std::array kNames = {"false", "true"};
  return OneOf(i, kNames) == 1;
}

size_t SpecReader::SkipSpaces() {
  while (at_ < text_.size() && IsSpace(text_[at_])) ++at_;
  return at_;
}

std::string_view SpecReader::Name() {
  const size_t begin = SkipSpaces();
  while (at_ < text_.size() && IsNameCharacter(text_[at_])) ++at_;
  return PartSince(begin);
}

std::string_view SpecReader::Value() {
  const size_t begin = SkipSpaces();
  while (at_ < text_.size() && IsValueCharacter(text_[at_])) ++at_;
  return PartSince(begin);
}

std::string_view SpecReader::NextCharacter() { return text_.substr(SkipSpaces(), 1); }

bool SpecReader::Next(char wanted) {
  if (IsAtEnd() || text_[at_] != wanted) return false;
  ++at_;
  return true;
}

absl::Status SpecReader::Expect(char wanted, const std::string& expected) {
  if (Next(wanted)) return absl::OkStatus();
  return Bad(NextCharacter(), "expected " + expected);
}

absl::Status SpecReader::ExpectEnd() {
  if (IsAtEnd()) return absl::OkStatus();
  return Bad(text_.substr(at_), "expected the end here");
}

absl::StatusOr<OptionValues> SpecReader::Options(std::string_view owner,
                                                 std::span<const SpecOption> options) {
  OptionValues values = Defaults(owner, options);
  if (Next('(') && !Next(')')) {
    do {
      BDN_RETURN_IF_ERROR(Option(&values));
    } while (Next(','));
    BDN_RETURN_IF_ERROR(Expect(')', "a closing )"));
  }
  for (size_t i = 0; i < options.size(); ++i) {
    if (values.values_[i].is_given || options[i].default_value != nullptr) continue;
    return Bad(owner, absl::StrFormat("%s needs %s=, %s", std::string(owner), options[i].name,
                                      options[i].expected));
  }
  return values;
}

absl::Status SpecReader::Option(OptionValues* values) {
  if (IsAtEnd()) return Bad(NextCharacter(), "expected a closing )");
  const std::string_view name = Name();
  const std::string owner(values->owner_);
  if (values->options_.empty()) return Bad(name, owner + " takes no options");
  std::vector<std::string> known;
  for (size_t i = 0; i < values->options_.size(); ++i) {
    known.emplace_back(values->options_[i].name);
    if (name != known.back()) continue;
    OptionValues::Value& value = values->values_[i];
    if (value.is_given) return Bad(name, known.back() + " is given twice");
    BDN_RETURN_IF_ERROR(Expect('=', "= and a value"));
    value.text = value.part = Value();
    value.is_given = true;
    return absl::OkStatus();
  }
  return Unknown(name, "option of " + owner, known);
}

absl::Status SpecReader::Bad(std::string_view part, const std::string& message) const {
  std::string shown(text_);
  // One character each: carets stand below by position, and the message goes into logs.
  for (char& c : shown) {
    if (std::isprint(static_cast<unsigned char>(c)) == 0) c = '?';
  }
  return InvalidArgument("%s: %s\n  %s\n  %s%s", kind_, message, shown,
                         std::string(static_cast<size_t>(part.data() - text_.data()), ' '),
                         std::string(std::max<size_t>(1, part.size()), '^'));
}

absl::Status SpecReader::Check(const OptionValues& values) const {
  if (values.ok()) return absl::OkStatus();
  const SpecOption& option = values.options_[values.bad_];
  return Bad(values.values_[values.bad_].part,
             absl::StrFormat("%s must be %s", option.name, option.expected));
}

absl::Status SpecReader::Unknown(std::string_view name, const std::string& what,
                                 std::span<const std::string> known) const {
  const std::string nearest = NearestName(name, known);
  return Bad(name, absl::StrFormat("unknown %s '%s'; ", what, std::string(name)) +
                       (nearest.empty() ? "known: " + absl::StrJoin(known, ", ")
                                        : "did you mean " + nearest + "?"));
}

std::string RealText(double value) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof(digits), value).ptr};
}

std::string SpecText(const std::string& name, std::span<const std::string> options) {
  return options.empty() ? name : name + "(" + absl::StrJoin(options, ",") + ")";
}

}  // namespace bdn
