#include "common/cluster/host_and_pid.h"

#include <unistd.h>

#include "absl/strings/str_format.h"

namespace bdn {

std::string HostAndPid() {
  char host[256] = "unknown";
  (void)gethostname(host, sizeof(host) - 1);
  return absl::StrFormat("%s:%d", host, getpid());
}

}  // namespace bdn
