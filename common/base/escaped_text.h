#ifndef BANDONEON_COMMON_BASE_ESCAPED_TEXT_H_
#define BANDONEON_COMMON_BASE_ESCAPED_TEXT_H_

#include <string>
#include <string_view>

namespace bdn {

// Appends `text` as a JSON string with its quotes, on one line and valid UTF-8 whatever is in it:
// control characters are escaped, and each byte that belongs to no character becomes U+FFFD.
void AppendJsonText(std::string_view text, std::string* out);

// Appends `text` for an XML document, as an attribute or between tags. Control characters, which
// XML 1.0 does not have, and bytes that belong to no character become U+FFFD.
void AppendXmlText(std::string_view text, std::string* out);

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_ESCAPED_TEXT_H_
