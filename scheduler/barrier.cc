#include "scheduler/barrier.h"

#include <algorithm>
#include <iterator>

namespace bdn {

std::string Barrier::Missing() const {
  Roster missing;
  std::set_difference(expected_.begin(), expected_.end(), present_.begin(), present_.end(),
                      std::inserter(missing, missing.end()));
  return NamesOf(missing);
}

}  // namespace bdn
