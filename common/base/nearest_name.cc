#include "common/base/nearest_name.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace bdn {

std::string NearestName(std::string_view word, std::span<const std::string> known) {
  std::string best;
  // A third of the letters, and at least two, may be wrong; more would suggest names that were not
  // meant.
  size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& name : known) {
    // Levenshtein's distance, with one row of its table.
    std::vector<size_t> row(name.size() + 1);
    for (size_t j = 0; j <= name.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= word.size(); ++i) {
      size_t diagonal = row[0];
      row[0] = i;
      for (size_t j = 1; j <= name.size(); ++j) {
        const size_t above = row[j];
        row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (word[i - 1] != name[j - 1])});
        diagonal = above;
      }
    }
    if (row[name.size()] < best_distance) {
      best_distance = row[name.size()];
      best = name;
    }
  }
  return best;
}

}  // namespace bdn
