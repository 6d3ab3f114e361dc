#include "common/base/descriptors.h"

#include <sys/resource.h>

#include "common/base/status.h"

namespace bdn {
namespace {

// The descriptors for files, threads' wake-ups, the control plane, and connections that come and
// go.
constexpr uint64_t kOthers = 64;

}  // namespace

void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);  // every process may raise its limit up to the hard one
}

absl::Status CheckDescriptors(uint64_t needed, const std::string& who) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed + kOthers) {
    return absl::OkStatus();
  }
  return ResourceExhausted(
      "%s needs %d open files, and may have %d: raise the limit (ulimit -n %d, or systemd's "
      "LimitNOFILE) and start again",
      who, needed + kOthers, limit.rlim_cur, needed + kOthers);
}

}  // namespace bdn
