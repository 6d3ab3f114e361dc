// The faults of the executables in this directory, which are those of the product with this file
// beside them. At fault points (common/base/fault_point.h) they do what BANDONEON_FAULT says:
//
//   point=reply.some,at=3,do=kill            at the third time SIGKILL to itself
//   role=server,rank=1,point=round.closed    in server 1 alone; at=1 and do=kill by default
//   do=stop:SECONDS                          SIGSTOP to itself; a child lets it go on after 8 s
//   do=cut                                   ends all its connections; cut:tcp: those of TCP alone
//   do=exit                                  exits with status 70
//   step=N                                   counts only from when that many points named
//                                            round.closed or encode.done were passed here
//   twice                                    at the next time, too
//   wait=MS                                  first stands still so long, while other threads go on
//   once-file=PATH                           makes this file, and does nothing where it is there
//   after=PATH                               counts only once this file is there
//
// Several faults are divided by semicolons. By the signal SIGRTMIN+5 a process does `cut`.

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <fstream>
#include <sstream>
#include <string>

#include "common/base/fault_point.h"

namespace {

struct Fault {
  std::string point;
  std::string role;
  int rank = -1;
  int at = 1;
  int step = 0;
  int wait_ms = 0;
  bool twice = false;
  std::string what = "kill";
  double argument = -1;
  bool tcp_only = false;
  std::string once_file;
  std::string after;
  std::atomic<bool> is_after{false};
  std::atomic<int> passed{0};
};

// Atomics in a list of which the hook reads: it is complete before the hook is set.
std::deque<Fault>& Faults() {
  static auto* const faults = new std::deque<Fault>;
  return *faults;
}
std::atomic<int> steps{0};

[[noreturn]] void Refuse(const std::string& why) {
  std::fprintf(stderr, "BANDONEON_FAULT: %s\n", why.c_str());
  std::_Exit(64);
}

int NumberOf(const std::string& name, const std::string& text) {
  char* end = nullptr;
  const long value = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || value < 0 || value > 1000000) {
    Refuse(name + "=" + text + " is no number from 0 to 1000000");
  }
  return static_cast<int>(value);
}

std::string ReadAll(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string RoleOfThisProcess() {
  std::string path(4096, '\0');
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  path.resize(length > 0 ? static_cast<size_t>(length) : 0);
  const std::string name = path.substr(path.find_last_of('/') + 1);
  if (name == "bandoneon-server") return "server";
  if (name == "bandoneon-scheduler") return "scheduler";
  if (name == "bandoneon-worker") return "daemon";
  return name == "bandoneon" ? "command" : "worker";
}

int RankOfThisProcess() {
  const std::string arguments = ReadAll("/proc/self/cmdline");
  std::string flag("\0--rank=", 8);
  if (const size_t at = arguments.find(flag); at != std::string::npos) {
    return std::atoi(arguments.c_str() + at + flag.size());
  }
  for (const char* name : {"BANDONEON_RANK", "RANK"}) {
    if (const char* rank = std::getenv(name); rank != nullptr) return std::atoi(rank);
  }
  return -1;
}

void ReadFault(const std::string& text) {
  Fault& fault = Faults().emplace_back();
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t equals = part.find('=');
    const std::string name = part.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : part.substr(equals + 1);
    if (name == "point") {
      fault.point = value;
    } else if (name == "role") {
      fault.role = value;
    } else if (name == "rank") {
      fault.rank = NumberOf(name, value);
    } else if (name == "at") {
      fault.at = NumberOf(name, value);
    } else if (name == "step") {
      fault.step = NumberOf(name, value);
    } else if (name == "wait") {
      fault.wait_ms = NumberOf(name, value);
    } else if (name == "twice" && value.empty()) {
      fault.twice = true;
    } else if (name == "once-file") {
      fault.once_file = value;
    } else if (name == "after") {
      fault.after = value;
    } else if (name == "do") {
      const size_t colon = value.find(':');
      fault.what = value.substr(0, colon);
      const std::string argument = colon == std::string::npos ? "" : value.substr(colon + 1);
      fault.tcp_only = argument == "tcp";
      if (!argument.empty() && !fault.tcp_only) fault.argument = std::atof(argument.c_str());
    } else {
      Refuse("'" + part +
             "' is none of point, role, rank, at, step, wait, twice, once-file, after, do");
    }
  }
  bool is_known = false;
  for (const char* point : bdn::kFaultPoints) is_known |= fault.point == point;
  if (!is_known) Refuse("point=" + fault.point + " is none of kFaultPoints");
  bool can = false;
  for (const char* what : {"kill", "stop", "cut", "exit"}) can |= fault.what == what;
  if (!can) Refuse("do=" + fault.what + " is none of kill, stop, cut, exit");
}

void SleepFor(double seconds) {
  timespec left = {
      static_cast<time_t>(seconds),
      static_cast<long>((seconds - static_cast<double>(static_cast<time_t>(seconds))) * 1e9)};
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

// Stops this process; a child, which keeps nothing of it, lets it go on.
void Stop(double seconds) {
  const pid_t self = getpid();
  // Without the handlers of fork, which other threads' locks could hold up.
  const auto child = static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
  if (child == 0) {
    // Its copies of sockets and pipes would outlive this process.
    syscall(SYS_close_range, 0u, ~0u, 0u);
    for (double waited = 0; waited < seconds && getppid() == self; waited += 0.1) SleepFor(0.1);
    if (getppid() == self) kill(self, SIGCONT);
    _exit(0);
  }
  kill(self, SIGSTOP);
  if (child > 0) waitpid(child, nullptr, 0);
}

// Ends the connections of this process as a network would: both ends learn it, and no socket that
// listens is touched.
void Cut(bool tcp_only) {
  DIR* const open = opendir("/proc/self/fd");
  if (open == nullptr) return;
  while (const dirent* entry = readdir(open)) {
    const int fd = std::atoi(entry->d_name);
    int listens = 0;
    socklen_t length = sizeof(listens);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0 || listens != 0) continue;
    int domain = 0;
    length = sizeof(domain);
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0) continue;
    const bool is_network = domain == AF_INET || domain == AF_INET6;
    if (is_network || (!tcp_only && domain == AF_UNIX)) shutdown(fd, SHUT_RDWR);
  }
  closedir(open);
}

// Returns whether this process is the first to make the file.
bool IsFirst(const Fault& fault) {
  if (fault.once_file.empty()) return true;
  const int fd = open(fault.once_file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd >= 0) {
    dprintf(fd, "%s %s pid %d\n", fault.point.c_str(), fault.what.c_str(), getpid());
    close(fd);
    return true;
  }
  return false;
}

void Do(const Fault& fault) {
  if (fault.wait_ms > 0) SleepFor(fault.wait_ms / 1000.0);
  if (fault.what == "kill") kill(getpid(), SIGKILL);
  if (fault.what == "exit") std::_Exit(70);
  if (fault.what == "stop") Stop(fault.argument < 0 ? 8 : fault.argument);
  if (fault.what == "cut") Cut(fault.tcp_only);
}

void OnPoint(const char* point) {
  const bool is_step =
      std::strcmp(point, "round.closed") == 0 || std::strcmp(point, "encode.done") == 0;
  const int step = is_step ? ++steps : steps.load();
  for (Fault& fault : Faults()) {
    if (fault.point != point || step < fault.step) continue;
    if (!fault.after.empty() && !fault.is_after) {
      fault.is_after = access(fault.after.c_str(), F_OK) == 0;
      if (!fault.is_after) continue;
    }
    const int passed = ++fault.passed;
    const bool is_due = passed == fault.at || (fault.twice && passed == fault.at + 1);
    if (is_due && (passed > fault.at || IsFirst(fault))) Do(fault);
  }
}

__attribute__((constructor)) void SetHook() {
  const char* const value = std::getenv("BANDONEON_FAULT");
  if (value == nullptr) return;
  const std::string text = value;
  // The product refuses variables that are no settings.
  unsetenv("BANDONEON_FAULT");
  std::istringstream all(text);
  for (std::string one; std::getline(all, one, ';');) ReadFault(one);
  // Those that are for this process.
  const std::string role = RoleOfThisProcess();
  const int rank = RankOfThisProcess();
  bool is_meant = false;
  for (Fault& fault : Faults()) {
    const bool is_mine =
        (fault.role.empty() || fault.role == role) && (fault.rank < 0 || fault.rank == rank);
    if (!is_mine || role == "command") fault.point = "of another process";
    is_meant |= is_mine && role != "command";
  }
  if (is_meant) bdn::fault_hook.store(&OnPoint);
  if (role != "command") signal(SIGRTMIN + 5, [](int) { Cut(false); });
}

}  // namespace
