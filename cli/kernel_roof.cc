#include "cli/kernel_roof.h"

#include <sched.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "cli/local_job.h"

extern char** environ;

namespace bdn::cli {
namespace {

// Returns the number of cores on which this process may run.
int NumProcessors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

}  // namespace

std::unique_ptr<KernelRoof> KernelRoof::Start(const Options& options) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return nullptr;
  std::vector<std::string> words = {
      ProgramBeside("bandoneon-bench-roof"),
      absl::StrFormat("--workers=%d", options.workers),
      absl::StrFormat("--tensors=%d", options.tensors),
      absl::StrFormat("--elements=%d", options.bytes / sizeof(float)),
      absl::StrFormat("--partition=%d",
                      std::max(sizeof(float), options.partition_bytes) / sizeof(float)),
      absl::StrFormat("--threads=%d", NumProcessors()),
      "--push=" + options.push,
      "--pull=" + options.pull};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (error != 0) {
    close(ends[0]);
    return nullptr;
  }
  return std::unique_ptr<KernelRoof>(new KernelRoof(pid, ends[0]));
}

// The program ends when its input does.
KernelRoof::~KernelRoof() {
  close(socket_);
  waitpid(pid_, nullptr, 0);
}

std::optional<KernelRoof::Cost> KernelRoof::Step() {
  if (send(socket_, "\n", 1, MSG_NOSIGNAL) != 1) return std::nullopt;
  std::string line;
  for (char c = 0; recv(socket_, &c, 1, 0) == 1 && c != '\n';) line += c;
  const std::pair<std::string, std::string> words = absl::StrSplit(line, ' ');
  Cost cost;
  if (!absl::SimpleAtod(words.first, &cost.seconds) || cost.seconds <= 0 ||
      !absl::SimpleAtod(words.second, &cost.cpu_seconds)) {
    return std::nullopt;
  }
  return cost;
}

double MeasureMemcpy(size_t tensors, size_t bytes) {
  const std::vector<std::vector<float>> from(tensors, std::vector<float>(bytes / sizeof(float), 1));
  std::vector<std::vector<float>> to(tensors, std::vector<float>(bytes / sizeof(float), 2));
  const auto begin = std::chrono::steady_clock::now();
  for (size_t t = 0; t < tensors; ++t) memcpy(to[t].data(), from[t].data(), bytes);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  return static_cast<double>(tensors * bytes) / took.count() / 1e9;
}

}  // namespace bdn::cli
