#ifndef BANDONEON_TESTS_WIRE_DOCUMENT_BLOCK_H_
#define BANDONEON_TESTS_WIRE_DOCUMENT_BLOCK_H_

#include <fstream>
#include <string>

#include "gtest/gtest.h"
#include "tests/wire/wire_bytes.h"

namespace bdn {

// Reads the block of proto/wire_format.md that begins with ```KIND, without its comments.
inline Bytes ReadDocumentBlock(const std::string& kind) {
  std::ifstream file(BDN_WIRE_FORMAT_DOCUMENT);
  EXPECT_TRUE(file.is_open());
  std::string digits;
  bool is_inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("```")) {
      is_inside = line == "```" + kind;
      continue;
    }
    if (!is_inside) continue;
    for (const char c : line.substr(0, line.find('#'))) {
      if (c != ' ') digits += c;
    }
  }
  return Unhex(digits);
}

}  // namespace bdn

#endif  // BANDONEON_TESTS_WIRE_DOCUMENT_BLOCK_H_
