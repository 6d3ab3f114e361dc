#ifndef BANDONEON_TRACE_TEXT_TABLE_H_
#define BANDONEON_TRACE_TEXT_TABLE_H_

#include <string>
#include <vector>

namespace bdn {

using TableRows = std::vector<std::vector<std::string>>;

// Returns rows as a table, with columns as wide as they need be. The first row is the heading, and
// none is longer.
std::string TextTable(const TableRows& rows);

}  // namespace bdn

#endif  // BANDONEON_TRACE_TEXT_TABLE_H_
