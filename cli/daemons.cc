#include <string.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/local_job.h"

namespace bdn::cli {
namespace {

constexpr int kNotRunnable = 127;

// Becomes the daemon beside this program, so that signals and the exit code are the daemon's own.
int Become(const char* role, Arguments args) {
  std::vector<std::string> texts = {ProgramBeside(std::string("bandoneon-") + role)};
  texts.insert(texts.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (std::string& text : texts) argv.push_back(text.data());
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  fprintf(stderr, "bandoneon %s: cannot run %s: %s\n", role, argv[0], strerror(errno));
  return kNotRunnable;
}

}  // namespace

int SchedulerCommand(Arguments args) { return Become("scheduler", args); }
int ServerCommand(Arguments args) { return Become("server", args); }
int WorkerCommand(Arguments args) { return Become("worker", args); }

}  // namespace bdn::cli
