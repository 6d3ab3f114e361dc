#include "cli/machine_facts.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <linux/magic.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "cli/local_job.h"
#include "worker/c_api/bandoneon.h"

#ifdef BDN_HAS_FABRIC
#include "common/transport/fabric/fabric_list.h"
#endif

namespace bdn::cli {
namespace {

namespace fs = std::filesystem;

// Returns the first line of a file of /proc or /sys; empty where there is none.
std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<uint64_t> NumberIn(const std::string& path) {
  uint64_t number;
  if (!absl::SimpleAtoi(FirstLine(path), &number)) return std::nullopt;
  return number;
}

std::vector<std::string> CpuFeatures() {
  const std::set<std::string> known = {"sse4_2",   "avx2",     "fma",   "f16c", "avx512f",
                                       "avx512bw", "avx512vl", "asimd", "sve",  "sve2"};
  std::ifstream file("/proc/cpuinfo");
  std::vector<std::string> found;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("flags", 0) != 0 && line.rfind("Features", 0) != 0) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    for (std::string word; words >> word;) {
      if (known.count(word) > 0) found.push_back(word);
    }
    break;
  }
  std::sort(found.begin(), found.end());
  return found;
}

void AskServer(MachineFacts* facts) {
  const std::string program = ProgramBeside("bandoneon-server");
  if (access(program.c_str(), X_OK) != 0) {
    facts->server_failure = absl::StrFormat("%s: %s", program, strerror(errno));
    return;
  }
  // Without a shell, as the path may have any characters.
  int ends[2];
  if (pipe(ends) != 0) return;
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    execl(program.c_str(), program.c_str(), "--version", nullptr);
    _exit(127);
  }
  close(ends[1]);
  std::string text;
  char chunk[512];
  for (ssize_t size;
       pid > 0 && text.size() < 4096 && (size = read(ends[0], chunk, sizeof(chunk))) > 0;) {
    text.append(chunk, static_cast<size_t>(size));
  }
  close(ends[0]);
  int status = 1;
  if (pid > 0) waitpid(pid, &status, 0);
  text = text.substr(0, text.find('\n'));
  (status == 0 ? facts->server_version : facts->server_failure) = text;
}

// Returns the version in a library's file name, libname.so.VERSION; empty for another name.
std::string VersionOfFile(const std::string& path) {
  std::error_code error;
  const std::string real = fs::canonical(path, error).filename().string();
  const size_t at = real.find(".so.");
  return error || at == std::string::npos ? "" : real.substr(at + 4);
}

// Returns the version of the library with which daemons serve browsers and scrapers; empty where
// they do not. This program does not link it: the file of the daemon is searched for the library's
// name, and the library then loaded.
std::string HttpLibraryVersion() {
  std::ifstream file(ProgramBeside("bandoneon-scheduler"), std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const size_t at = bytes.find("libmicrohttpd.so");
  if (at == std::string::npos) return "";
  void* library = dlopen(bytes.c_str() + at, RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return "not found";
  using Version = const char* (*)();
  const auto ask = reinterpret_cast<Version>(dlsym(library, "MHD_get_version"));
  return ask == nullptr ? "?" : ask();
}

std::vector<std::pair<std::string, std::string>> Libraries() {
  std::vector<std::pair<std::string, std::string>> found;
  // libbandoneon.so links it, so it is loaded here; a build may have it linked statically, which
  // tells nothing.
  using ZmqVersion = void (*)(int*, int*, int*);
  if (const auto ask = reinterpret_cast<ZmqVersion>(dlsym(RTLD_DEFAULT, "zmq_version"))) {
    int major = 0;
    int minor = 0;
    int patch = 0;
    ask(&major, &minor, &patch);
    found.emplace_back("libzmq", absl::StrFormat("%d.%d.%d", major, minor, patch));
  }
  using Text = const char* (*)();
  if (const auto ask = reinterpret_cast<Text>(dlsym(RTLD_DEFAULT, "grpc_version_string"))) {
    found.emplace_back("gRPC core", ask());
  }
  std::vector<std::string> paths;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* list) {
        static_cast<std::vector<std::string>*>(list)->emplace_back(info->dlpi_name);
        return 0;
      },
      &paths);
  for (const char* name : {"libgrpc++", "libprotobuf", "libcrypto"}) {
    for (const std::string& path : paths) {
      const std::string file = fs::path(path).filename().string();
      if (file.rfind(std::string(name) + ".so", 0) != 0) continue;
      found.emplace_back(name, VersionOfFile(path));
    }
  }
  if (const std::string version = HttpLibraryVersion(); !version.empty()) {
    found.emplace_back("libmicrohttpd", version);
  }
  return found;
}

void AskLimits(MachineFacts* facts) {
  rlimit limit;
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
    facts->memlock_bytes = limit.rlim_max == RLIM_INFINITY ? UINT64_MAX : limit.rlim_max;
  }
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) facts->open_files = limit.rlim_max;
  facts->huge_pages = NumberIn("/proc/sys/vm/nr_hugepages");
  const std::string chosen = FirstLine("/sys/kernel/mm/transparent_hugepage/enabled");
  const size_t begin = chosen.find('[');
  const size_t end = chosen.find(']');
  if (begin != std::string::npos && end != std::string::npos) {
    facts->transparent_huge_pages = chosen.substr(begin + 1, end - begin - 1);
  }
  struct statvfs shm;
  if (statvfs("/dev/shm", &shm) == 0) {
    facts->shm_bytes = uint64_t{shm.f_blocks} * shm.f_frsize;
    facts->shm_free_bytes = uint64_t{shm.f_bavail} * shm.f_frsize;
  }
}

void AskClock(MachineFacts* facts) {
  timex now = {};  // no modes, so that the clock is only read
  const int state = adjtimex(&now);
  if (state < 0) {
    facts->clock_failure = strerror(errno);
    return;
  }
  facts->clock_synchronised = state != TIME_ERROR && (now.status & STA_UNSYNC) == 0;
  facts->clock_error_seconds = static_cast<double>(now.maxerror) / 1e6;
}

// Finds the tightest limits of this process's cgroup and those above it, which a container may not
// see.
void AskCgroup(MachineFacts* facts) {
  std::string own;
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("0::", 0) == 0) own = line.substr(3);
  }
  for (fs::path path = own.empty() ? "/" : own;; path = path.parent_path()) {
    const std::string directory = "/sys/fs/cgroup" + (path == "/" ? "" : path.string());
    std::istringstream cpu(FirstLine(directory + "/cpu.max"));
    double quota;
    double period;
    if (cpu >> quota >> period && period > 0) {
      facts->cgroup_processors =
          std::min(facts->cgroup_processors.value_or(quota / period), quota / period);
    }
    if (const auto memory = NumberIn(directory + "/memory.max")) {
      facts->cgroup_memory_bytes = std::min(facts->cgroup_memory_bytes.value_or(*memory), *memory);
    }
    if (path == path.parent_path()) break;
  }
  // The first version of cgroups has its files elsewhere.
  const auto quota = NumberIn("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  const auto period = NumberIn("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (quota && period && *period > 0) {
    facts->cgroup_processors = static_cast<double>(*quota) / static_cast<double>(*period);
  }
  if (const auto memory = NumberIn("/sys/fs/cgroup/memory/memory.limit_in_bytes")) {
    facts->cgroup_memory_bytes = *memory;
  }
}

std::vector<fs::path> EntriesOf(const char* directory) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error))
    entries.push_back(entry.path());
  std::sort(entries.begin(), entries.end());
  return entries;
}

void AskNetwork(MachineFacts* facts) {
  for (const fs::path& path : EntriesOf("/sys/class/infiniband")) {
    facts->rdma_devices.push_back(path.filename().string());
  }
#ifdef BDN_HAS_FABRIC
  const auto fabrics = ListFabricProviders();
  if (!fabrics.ok()) facts->fabric_failure = std::string(fabrics.status().message());
  for (const FabricProvider& each : fabrics.ok() ? *fabrics : std::vector<FabricProvider>()) {
    std::string name = each.provider;
    if (!each.domain.empty()) name += " " + each.domain;
    if (!each.address.empty()) name += " " + each.address;
    facts->fabrics.push_back(
        {std::move(name), each.why_not, IsRdmaProvider(each.provider), each.has_device_memory});
  }
#else
  facts->fabric_failure = "built without libfabric's headers";
#endif
  for (const fs::path& path : EntriesOf("/sys/class/net")) {
    const std::string name = path.filename().string();
    const auto mtu = NumberIn(path.string() + "/mtu");
    if (name == "lo" || !mtu || FirstLine(path.string() + "/operstate") != "up") continue;
    facts->interfaces.push_back({name, static_cast<int>(*mtu)});
  }
}

}  // namespace

MachineFacts GatherMachineFacts() {
  MachineFacts facts;
  facts.own_version = bdn_version();
  facts.cpu_features = CpuFeatures();
  AskServer(&facts);
  facts.libraries = Libraries();
  AskLimits(&facts);
  AskClock(&facts);
  cpu_set_t allowed;
  facts.processors = sched_getaffinity(0, sizeof(allowed), &allowed) == 0
                         ? CPU_COUNT(&allowed)
                         : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  facts.memory_bytes =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  AskCgroup(&facts);
  AskNetwork(&facts);
  char devices[4096] = "";
  if (bdn_describe_devices(nullptr, devices, sizeof(devices), nullptr) == BDN_OK) {
    facts.devices = devices;
  }
  return facts;
}

JournalFacts GatherJournalFacts(const std::string& directory) {
  JournalFacts facts;
  // A trailing slash would make the directory its own parent.
  fs::path path = fs::path(directory).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  facts.directory = path.string();
  facts.looked_at = facts.directory;
  facts.own_user = geteuid();
  struct stat found = {};
  if (stat(facts.looked_at.c_str(), &found) != 0 && errno == ENOENT) {
    facts.looked_at = path.has_parent_path() ? path.parent_path().string() : ".";
  }
  struct statfs system = {};
  if (stat(facts.looked_at.c_str(), &found) != 0 || statfs(facts.looked_at.c_str(), &system) != 0) {
    facts.failure = strerror(errno);
    return facts;
  }
  facts.is_directory = S_ISDIR(found.st_mode);
  facts.owner = found.st_uid;
  facts.mode = found.st_mode;
  // By the effective user, as open and mkdir ask.
  if (faccessat(AT_FDCWD, facts.looked_at.c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
    facts.why_not_writable = strerror(errno);
  }
  facts.is_in_memory = system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC;
  facts.free_bytes = static_cast<uint64_t>(system.f_bavail) * static_cast<uint64_t>(system.f_bsize);
  return facts;
}

}  // namespace bdn::cli
