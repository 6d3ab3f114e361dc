#include "common/transport/fabric/fabric_host_names.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace bdn {
namespace {

constexpr char kMemory[] = "/dev/shm";

// Processes of two namespaces may have one number.
std::string Prefix() {
  struct stat space = {};
  if (stat("/proc/self/ns/pid", &space) != 0) return "";
  return absl::StrFormat("bdn-%d-", space.st_ino);
}

}  // namespace

std::string FabricHostName() { return absl::StrFormat("%s%d", Prefix(), getpid()); }

bool IsFabricNameOfHere(const std::string& name) {
  const std::string prefix = Prefix();
  return !prefix.empty() && absl::StartsWith(name, prefix);
}

size_t RemoveFabricNamesOfTheDead() {
  const std::string prefix = Prefix();
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(kMemory), closedir);
  if (prefix.empty() || directory == nullptr) return 0;
  size_t removed = 0;
  while (const dirent* const entry = readdir(directory.get())) {
    const absl::string_view name = entry->d_name;
    const size_t end = name.find(':');
    pid_t process;
    if (!absl::StartsWith(name, prefix) || end == absl::string_view::npos ||
        !absl::SimpleAtoi(name.substr(prefix.size(), end - prefix.size()), &process)) {
      continue;
    }
    struct stat file = {};
    const int where = dirfd(directory.get());
    const bool is_ours = fstatat(where, entry->d_name, &file, AT_SYMLINK_NOFOLLOW) == 0 &&
                         S_ISREG(file.st_mode) && file.st_uid == geteuid();
    const bool is_dead = process > 0 && kill(process, 0) != 0 && errno == ESRCH;
    if (is_ours && is_dead && unlinkat(where, entry->d_name, 0) == 0) ++removed;
  }
  return removed;
}

}  // namespace bdn
