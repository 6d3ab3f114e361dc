#ifndef BANDONEON_COMMON_BASE_THREAD_H_
#define BANDONEON_COMMON_BASE_THREAD_H_

#include <functional>
#include <thread>

namespace bdn {

// Starts a thread called `name` (a literal, 15 characters at most) that takes no signals: those are
// for the process's own threads, whose waits they are meant to interrupt. Throws std::system_error
// where the system lets none start, unless the reason is memory that a daemon has in reserve.
std::thread StartThread(const char* name, std::function<void()> body);

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_THREAD_H_
