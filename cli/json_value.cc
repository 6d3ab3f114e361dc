#include "cli/json_value.h"

#include <cctype>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"

namespace bdn::cli {
namespace {

constexpr int kDeepest = 32;

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  // Each reads one thing at `at_` and moves behind it; false when it is not there.
  bool Document(JsonValue* value) {
    if (!Value(value, 0)) return false;
    SkipSpace();
    return at_ == text_.size();
  }
  size_t at() const { return at_; }

 private:
  void SkipSpace() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
  }
  bool Take(std::string_view word) {
    SkipSpace();
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  bool Value(JsonValue* value, int depth) {
    if (depth > kDeepest) return false;
    SkipSpace();
    if (at_ >= text_.size()) return false;
    switch (text_[at_]) {
      case '{':
        value->kind = JsonValue::Kind::kObject;
        return Object(value, depth);
      case '[':
        value->kind = JsonValue::Kind::kList;
        return List(value, depth);
      case '"':
        value->kind = JsonValue::Kind::kText;
        return Text(&value->text);
      default:
        return Word(value);
    }
  }

  bool Object(JsonValue* value, int depth) {
    if (!Take("{")) return false;
    if (Take("}")) return true;
    do {
      std::string name;
      SkipSpace();
      if (!Text(&name) || !Take(":") || !Value(&value->object[name], depth + 1)) return false;
    } while (Take(","));
    return Take("}");
  }

  bool List(JsonValue* value, int depth) {
    if (!Take("[")) return false;
    if (Take("]")) return true;
    do {
      if (!Value(&value->list.emplace_back(), depth + 1)) return false;
    } while (Take(","));
    return Take("]");
  }

  bool Text(std::string* text) {
    if (!Take("\"")) return false;
    while (at_ < text_.size() && text_[at_] != '"') {
      if (text_[at_] != '\\') {
        *text += text_[at_++];
      } else if (!Escape(text)) {
        return false;
      }
    }
    if (at_ >= text_.size()) return false;
    ++at_;
    return true;
  }

  bool Escape(std::string* text) {
    constexpr std::string_view kLetters = "\"\\/bfnrt";
    constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
    if (at_ + 1 >= text_.size()) return false;
    const char letter = text_[at_ + 1];
    if (const size_t i = kLetters.find(letter); i != std::string_view::npos) {
      *text += kMeanings[i];
      at_ += 2;
      return true;
    }
    const std::string digits(text_.substr(at_ + 2, 4));
    char* end = nullptr;
    const long code = std::strtol(digits.c_str(), &end, 16);
    if (letter != 'u' || digits.size() != 4 || *end != '\0') return false;
    // Control characters are all that is escaped so where we read from.
    *text += code < 0x80 ? static_cast<char>(code) : '?';
    at_ += 6;
    return true;
  }

  bool Word(JsonValue* value) {
    if (Take("null")) return true;
    const bool yes = Take("true");
    if (yes || Take("false")) {
      value->kind = JsonValue::Kind::kBool;
      value->number = yes ? 1 : 0;
      return true;
    }
    value->kind = JsonValue::Kind::kNumber;
    const std::string digits(
        text_.substr(at_, text_.find_first_not_of("+-.eE0123456789", at_) - at_));
    char* end = nullptr;
    value->number = std::strtod(digits.c_str(), &end);
    at_ += digits.size();
    return !digits.empty() && *end == '\0';
  }

  const std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

const JsonValue& JsonValue::operator[](std::string_view name) const {
  static const JsonValue kNothing;
  const auto found = object.find(name);
  return found == object.end() ? kNothing : found->second;
}

std::string JsonValue::ToText() const {
  switch (kind) {
    case Kind::kText:
      return text;
    case Kind::kBool:
      return number != 0 ? "yes" : "no";
    case Kind::kNumber:
      return absl::StrFormat("%.15g", number);
    default:
      return "-";
  }
}

absl::StatusOr<JsonValue> ParseJson(std::string_view text) {
  Parser parser(text);
  JsonValue value;
  if (parser.Document(&value)) return value;
  return absl::InvalidArgumentError(absl::StrFormat("not JSON from byte %d on", parser.at()));
}

std::string JsonQuote(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20) {
      quoted += absl::StrFormat("\\u%04x", static_cast<int>(c));
      continue;
    }
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + '"';
}

}  // namespace bdn::cli
