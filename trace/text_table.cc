#include "trace/text_table.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace bdn {

std::string TextTable(const TableRows& rows) {
  if (rows.empty()) return "";
  std::vector<size_t> widths(rows[0].size(), 0);
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += absl::StrFormat("%-*s", static_cast<int>(widths[i] + 2), row[i]);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

}  // namespace bdn
