#ifndef BANDONEON_COMMON_BASE_CHECK_H_
#define BANDONEON_COMMON_BASE_CHECK_H_

#include <cstdio>
#include <cstdlib>
#include <string>

namespace bdn {

// Ends the process because of a mistake in this program, and says which on stderr. It is never for
// what a peer or a user can cause: that is a Status. Writes by itself, as the log's thread would not
// come to it any more.
[[noreturn]] inline void FailCheck(const std::string& mistake) {
  std::fprintf(stderr, "bandoneon has a bug: %s\n", mistake.c_str());
  std::abort();
}

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_CHECK_H_
