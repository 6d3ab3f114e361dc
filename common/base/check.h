#ifndef BANDONEON_COMMON_BASE_CHECK_H_
#define BANDONEON_COMMON_BASE_CHECK_H_

#include <cstdio>
#include <cstdlib>
#include <string>

namespace bdn {

// Ends the process because of a mistake in this program, and says on stderr which one. It is never
// called for what a peer or a user can cause: that is a Status. It writes by itself, because the
// log's thread would not get to the line before the process ends.
[[noreturn]] inline void FailCheck(const std::string& mistake) {
  std::fprintf(stderr, "bandoneon has a bug: %s\n", mistake.c_str());
  std::abort();
}

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_CHECK_H_
