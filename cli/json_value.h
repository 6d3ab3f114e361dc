#ifndef BANDONEON_CLI_JSON_VALUE_H_
#define BANDONEON_CLI_JSON_VALUE_H_

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace bdn::cli {

// A parsed JSON value, for reading what the library says of itself. Copyable.
struct JsonValue {
  enum class Kind { kNull, kBool, kNumber, kText, kList, kObject };
  Kind kind = Kind::kNull;
  double number = 0;  // of kBool too: 0 or 1
  std::string text;
  std::vector<JsonValue> list;
  std::map<std::string, JsonValue, std::less<>> object;

  // The member of that name; a null value where there is none.
  const JsonValue& operator[](std::string_view name) const;
  // For people: a text without quotes, a number without needless digits, "-" for null.
  std::string ToText() const;
};

// InvalidArgument says at which byte. Nesting is limited to 32.
absl::StatusOr<JsonValue> ParseJson(std::string_view text);

// `text` in quotes, escaped.
std::string JsonQuote(std::string_view text);

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_JSON_VALUE_H_
