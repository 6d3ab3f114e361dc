#include "common/base/daemon.h"

#include <signal.h>
#include <sys/signalfd.h>

#include <algorithm>
#include <cstdio>

#include "common/base/descriptors.h"
#include "common/base/status.h"

namespace bdn {
namespace {

bool Take(const char* flag, std::vector<std::string>* args) {
  const auto found = std::find(args->begin(), args->end(), flag);
  if (found == args->end()) return false;
  args->erase(found);
  return true;
}

absl::StatusOr<int> Run(const Daemon& daemon, std::vector<std::string> args) {
  if (Take("--help", &args)) {
    std::printf("%s%s", daemon.usage, Config::Help(daemon.settings).c_str());
    return 0;
  }
  if (Take("--version", &args)) {
    std::printf("%s %s\n", daemon.name, daemon.version.c_str());
    return 0;
  }
  const bool check_only = Take("--check-config", &args);
  BDN_ASSIGN_OR_RETURN(const Config config,
                       Config::Load(daemon.settings, args, ReadEnvironment(), daemon.elsewhere));
  BDN_RETURN_IF_ERROR(daemon.check(config));
  if (!check_only) {
    RaiseDescriptorLimit();
    return daemon.serve(config);
  }
  std::printf("%s", config.ToString().c_str());
  return 0;
}

}  // namespace

int RunDaemon(const Daemon& daemon, std::vector<std::string> args) {
  const absl::StatusOr<int> code = Run(daemon, std::move(args));
  if (code.ok()) return *code;
  std::fprintf(stderr, "%s: %s\n", daemon.name, std::string(code.status().message()).c_str());
  return 2;
}

int BlockEndSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signalfd(-1, &signals, SFD_CLOEXEC);
}

}  // namespace bdn
