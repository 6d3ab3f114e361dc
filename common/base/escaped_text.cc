#include "common/base/escaped_text.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/strings/str_format.h"

namespace bdn {
namespace {

// Returns the bytes of the character that `text` begins with, or 0 where it begins with none: a
// sequence that is cut short, longer than it needs to be, half of a UTF-16 pair, or past the last
// code point.
size_t CharacterBytes(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < bytes) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // The first byte alone does not exclude, in this order: a longer form than needed of three bytes,
  // a half of a UTF-16 pair, a longer form than needed of four bytes, and code points past
  // U+10FFFF.
  if (first == 0xe0 && byte(1) < 0xa0) return 0;
  if (first == 0xed && byte(1) > 0x9f) return 0;
  if (first == 0xf0 && byte(1) < 0x90) return 0;
  if (first == 0xf4 && byte(1) > 0x8f) return 0;
  return bytes;
}

constexpr std::string_view kNoCharacter = "\xef\xbf\xbd";  // U+FFFD

}  // namespace

void AppendJsonText(std::string_view text, std::string* out) {
  *out += '"';
  while (!text.empty()) {
    const auto first = static_cast<uint8_t>(text[0]);
    const size_t bytes = CharacterBytes(text);
    if (bytes == 0) {
      *out += kNoCharacter;
    } else if (first == '"' || first == '\\') {
      *out += '\\';
      *out += text[0];
    } else if (first < 0x20 || first == 0x7f) {
      absl::StrAppendFormat(out, "\\u%04x", first);
    } else {
      out->append(text.substr(0, bytes));
    }
    text.remove_prefix(std::max<size_t>(bytes, 1));
  }
  *out += '"';
}

void AppendXmlText(std::string_view text, std::string* out) {
  while (!text.empty()) {
    const size_t bytes = CharacterBytes(text);
    const std::string_view character = text.substr(0, std::max<size_t>(bytes, 1));
    text.remove_prefix(character.size());
    const auto first = static_cast<uint8_t>(character[0]);
    if (bytes == 0 || first < 0x20 || first == 0x7f || character == "\xef\xbf\xbe" ||
        character == "\xef\xbf\xbf") {
      *out += kNoCharacter;
    } else if (first == '<') {
      *out += "&lt;";
    } else if (first == '&') {
      *out += "&amp;";
    } else if (first == '>') {
      *out += "&gt;";
    } else if (first == '"') {
      *out += "&quot;";
    } else {
      out->append(character);
    }
  }
}

}  // namespace bdn
