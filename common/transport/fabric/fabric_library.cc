#include "common/transport/fabric/fabric_library.h"

#include <dlfcn.h>
#include <rdma/fabric.h>
#include <signal.h>

#include <array>

#include "common/base/status.h"

namespace bdn {
namespace {

constexpr uint32_t kOldest = FI_VERSION(1, 9);

template <typename Function>
bool Find(void* library, const char* symbol, Function** to) {
  *to = reinterpret_cast<Function*>(dlsym(library, symbol));
  return *to != nullptr;
}

// A guard that restores this process's signal handlers. The libraries of PSM, with which libfabric
// is linked, replace those of SIGINT, SIGTERM and of crashes when they are loaded.
class KeptSignals {
 public:
  KeptSignals() {
    for (size_t i = 0; i < before_.size(); ++i) sigaction(NumberOf(i), nullptr, &before_[i]);
  }
  ~KeptSignals() {
    for (size_t i = 0; i < before_.size(); ++i) sigaction(NumberOf(i), &before_[i], nullptr);
  }
  KeptSignals(const KeptSignals&) = delete;
  KeptSignals& operator=(const KeptSignals&) = delete;

 private:
  static int NumberOf(size_t i) { return static_cast<int>(i) + 1; }

  std::array<struct sigaction, 31> before_ = {};
};

}  // namespace

absl::StatusOr<FabricLibrary> FabricLibrary::Open(const std::string& path) {
  void* handle = nullptr;
  {
    const KeptSignals kept;
    handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (handle == nullptr) {
    return NotFound("libfabric cannot be opened: %s; install it (Debian: libfabric1)", dlerror());
  }
  FabricLibrary library;
  const bool has_all = Find(handle, "fi_getinfo", &library.getinfo) &&
                       Find(handle, "fi_freeinfo", &library.freeinfo) &&
                       Find(handle, "fi_dupinfo", &library.dupinfo) &&
                       Find(handle, "fi_fabric", &library.fabric) &&
                       Find(handle, "fi_strerror", &library.strerror) &&
                       Find(handle, "fi_version", &library.version);
  if (!has_all) return FailedPrecondition("%s is not libfabric: it lacks its functions", path);
  if (const uint32_t version = library.version(); FI_VERSION_LT(version, kOldest)) {
    return FailedPrecondition("%s is libfabric %d.%d: at least 1.9 is needed, update it", path,
                              FI_MAJOR(version), FI_MINOR(version));
  }
  return library;
}

}  // namespace bdn
