#include "cli/process_group.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_format.h"

namespace bdn::cli {
namespace {

// A longer line is handed over in pieces, so that a child cannot fill our memory with one.
constexpr size_t kLongestLine = size_t{1} << 16;
// The exit code by which shells say that a command could not be started.
constexpr int kNotRunnable = 127;

std::vector<std::string> EnvironmentWith(const Variables& variables) {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view line(*entry);
    const std::string_view name = line.substr(0, line.find('='));
    const auto same = [&](const auto& variable) { return variable.first == name; };
    if (std::none_of(variables.begin(), variables.end(), same)) entries.emplace_back(line);
  }
  for (const auto& [name, value] : variables) entries.push_back(name + "=" + value);
  return entries;
}

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

struct PipeEnds {
  int read = -1;
  int write = -1;
};

absl::Status MakePipe(PipeEnds* ends) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(absl::StrFormat("pipe: %s", strerror(errno)));
  }
  *ends = {fds[0], fds[1]};
  return absl::OkStatus();
}

void CloseBoth(const PipeEnds& ends) {
  if (ends.read >= 0) close(ends.read);
  if (ends.write >= 0) close(ends.write);
}

// Runs between fork and exec, and calls only functions that are safe there. Writes errno to
// `failure` where exec failed.
[[noreturn]] void Become(pid_t parent, int input, int out, int error, int failure,
                         char* const* argv, char* const* environment) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // It died before the line above, and no signal comes.
  if (getppid() != parent) _exit(kNotRunnable);
  // Signals that are ignored would stay so: SIGPIPE by us, SIGINT by a shell that runs us in the
  // background.
  for (const int signal_number : {SIGPIPE, SIGINT, SIGQUIT}) signal(signal_number, SIG_DFL);
  const sigset_t none = {};
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(input, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(error, STDERR_FILENO);
  execvpe(argv[0], argv, environment);
  const int why = errno;
  [[maybe_unused]] const ssize_t written = write(failure, &why, sizeof(why));
  _exit(kNotRunnable);
}

// Returns the processes whose parent is this one.
std::vector<pid_t> DirectChildren() {
  std::vector<pid_t> children;
  DIR* proc = opendir("/proc");
  if (proc == nullptr) return children;
  while (const dirent* entry = readdir(proc)) {
    const pid_t pid = static_cast<pid_t>(strtol(entry->d_name, nullptr, 10));
    if (pid <= 0) continue;
    FILE* stat = fopen(absl::StrFormat("/proc/%d/stat", pid).c_str(), "re");
    if (stat == nullptr) continue;
    char line[512] = {};
    const size_t size = fread(line, 1, sizeof(line) - 1, stat);
    fclose(stat);
    // The line is "pid (name) state ppid ...", where the name may have any characters.
    const char* name_end = size == 0 ? nullptr : strrchr(line, ')');
    int parent = 0;
    if (name_end != nullptr && sscanf(name_end + 1, " %*c %d", &parent) == 1 &&
        parent == getpid()) {
      children.push_back(pid);
    }
  }
  closedir(proc);
  return children;
}

}  // namespace

sigset_t SupervisedSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGQUIT, SIGUSR2}) sigaddset(&set, signal);
  struct sigaction hangup = {};
  sigaction(SIGHUP, nullptr, &hangup);
  // Under nohup a job must survive its terminal.
  if (hangup.sa_handler != SIG_IGN) sigaddset(&set, SIGHUP);
  return set;
}

int ExitCode(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

std::string DescribeCode(int code) {
  if (code <= 128) return absl::StrFormat("exited with code %d", code);
  return absl::StrFormat("was killed by signal %d (%s)", code - 128, strsignal(code - 128));
}

void KillDescendants(const std::function<void(pid_t, int)>& on_reaped) {
  // Only direct children are signalled: no other process can reap them, so their numbers still
  // belong to them. The children of each then become ours, until there are none.
  while (true) {
    for (const pid_t pid : DirectChildren()) kill(pid, SIGKILL);
    int status;
    const pid_t reaped = waitpid(-1, &status, 0);
    if (reaped < 0 && errno == ECHILD) return;
    if (reaped > 0 && on_reaped) on_reaped(reaped, status);
  }
}

ProcessGroup::ProcessGroup(LineHandler on_line, std::chrono::milliseconds patience)
    : on_line_(std::move(on_line)), patience_(patience) {
  // Grandchildren whose parent dies come to us, so that KillAll reaches them.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  signal(SIGPIPE, SIG_IGN);
  const sigset_t ours = SupervisedSignals();
  // Blocked before any child starts: from then on signals wait in the descriptor, and none
  // interrupts us.
  sigprocmask(SIG_BLOCK, &ours, nullptr);
  signal_fd_ = signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK);
}

ProcessGroup::~ProcessGroup() {
  KillAll();
  close(signal_fd_);
}

absl::StatusOr<size_t> ProcessGroup::Start(const ProcessSpec& spec) {
  auto child = Spawn(spec);
  if (!child.ok()) return child.status();
  children_.push_back(*std::move(child));
  return children_.size() - 1;
}

absl::Status ProcessGroup::StartAgain(size_t process, const ProcessSpec& spec) {
  auto child = Spawn(spec);
  if (!child.ok()) return child.status();
  // A child of the former may hold its pipes open, and what it still writes is nobody's.
  for (const Stream stream : {Stream::kOut, Stream::kError}) {
    ReadPipe(process, stream);
    ClosePipe(process, stream);
  }
  if (children_[process].input >= 0) close(children_[process].input);
  KillGroupOf(children_[process].pid);
  children_[process] = *std::move(child);
  return absl::OkStatus();
}

void ProcessGroup::KillGroupOf(pid_t former) {
  // A child of ours in the group keeps the number from being another group's. Where there is none
  // it may be one's that has the former's number now.
  const auto is_former = [former](const Child& child) {
    return child.alive && child.pid == former;
  };
  if (std::ranges::any_of(children_, is_former)) return;
  const auto is_left = [former](pid_t pid) { return getpgid(pid) == former; };
  if (std::ranges::any_of(DirectChildren(), is_left)) kill(-former, SIGKILL);
}

absl::StatusOr<ProcessGroup::Child> ProcessGroup::Spawn(const ProcessSpec& spec) {
  PipeEnds input;
  PipeEnds out;
  PipeEnds error;
  PipeEnds failure;
  absl::Status made = MakePipe(&out);
  if (made.ok()) made = MakePipe(&error);
  if (made.ok()) made = MakePipe(&failure);
  if (made.ok() && spec.wants_input) made = MakePipe(&input);
  if (made.ok() && !spec.wants_input) {
    if (spec.input >= 0) input.read = fcntl(spec.input, F_DUPFD_CLOEXEC, 0);
    if (input.read < 0) input.read = open("/dev/null", O_RDONLY | O_CLOEXEC);
  }
  const std::vector<std::string> environment = EnvironmentWith(spec.variables);
  const std::vector<char*> argv = Pointers(spec.argv);
  const std::vector<char*> envp = Pointers(environment);
  const pid_t parent = getpid();
  const pid_t pid = made.ok() ? fork() : -1;
  if (pid == 0) {
    Become(parent, input.read, out.write, error.write, failure.write, argv.data(), envp.data());
  }
  int why = errno;
  if (pid > 0) {
    close(failure.write);
    failure.write = -1;
    // exec closes the child's end, so this reads an end of file where exec worked, and errno where
    // it failed.
    if (read(failure.read, &why, sizeof(why)) <= 0) why = 0;
    if (why != 0) waitpid(pid, nullptr, 0);
  }
  CloseBoth(failure);
  if (pid < 0 || why != 0) {
    for (const PipeEnds& ends : {input, out, error}) CloseBoth(ends);
    if (!made.ok()) return made;
    return absl::NotFoundError(
        absl::StrFormat("%s: cannot run %s: %s", spec.name, spec.argv[0], strerror(why)));
  }
  for (const int fd : {input.read, out.write, error.write}) close(fd);
  // Our ends alone: the child's would be non-blocking for its whole program.
  fcntl(out.read, F_SETFL, O_NONBLOCK);
  fcntl(error.read, F_SETFL, O_NONBLOCK);
  Child child;
  child.name = spec.name;
  child.pid = pid;
  child.alive = true;
  child.input = input.write;
  child.pipes[0].fd = out.read;
  child.pipes[1].fd = error.read;
  return child;
}

ProcessGroup::Event ProcessGroup::Next(std::optional<Clock::time_point> deadline, int watched) {
  while (true) {
    Event event;
    if (ReapOne(&event) || ReadSignal(&event)) return event;
    std::optional<Clock::time_point> due;
    if (HandOverPartial(&due)) {
      event.kind = Event::Kind::kLines;
      return event;
    }
    // The deadline is checked here, too: poll does not time out while a child prints without pause.
    if (deadline && Clock::now() >= *deadline) return event;
    std::vector<pollfd> polled = {{signal_fd_, POLLIN, 0}, {watched, POLLIN, 0}};
    std::vector<std::pair<size_t, Stream>> sources;
    for (size_t i = 0; i < children_.size(); ++i) {
      for (const Stream stream : {Stream::kOut, Stream::kError}) {
        const int fd = children_[i].pipes[static_cast<size_t>(stream)].fd;
        if (fd < 0) continue;
        polled.push_back({fd, POLLIN, 0});
        sources.emplace_back(i, stream);
      }
    }
    int timeout = -1;
    const std::optional<Clock::time_point> wake =
        !due || (deadline && *deadline < *due) ? deadline : due;
    if (wake) {
      // Rounded up, so that poll does not end just before the deadline and spin until it.
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*wake - Clock::now());
      timeout = static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1 << 30));
    }
    // The deadline has passed, or a signal came.
    if (poll(polled.data(), polled.size(), timeout) <= 0) continue;
    for (size_t i = 0; i < sources.size(); ++i) {
      if (polled[i + 2].revents == 0) continue;
      ReadPipe(sources[i].first, sources[i].second);
      event.kind = Event::Kind::kLines;
    }
    if (polled[1].revents != 0) event.kind = Event::Kind::kReadable;
    // Also after lines, whose handler may have moved the caller's deadline.
    if (event.kind != Event::Kind::kTimeout) return event;
  }
}

bool ProcessGroup::ReapOne(Event* event) {
  while (true) {
    int status;
    // Any child: as a subreaper we have others to reap as well, which are no event.
    const pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid <= 0) return false;
    for (size_t i = 0; i < children_.size(); ++i) {
      if (children_[i].pid != pid || !children_[i].alive) continue;
      children_[i].alive = false;
      // The last output of a child belongs before the news of its end.
      ReadPipe(i, Stream::kOut);
      ReadPipe(i, Stream::kError);
      *event = {Event::Kind::kEnded, i, ExitCode(status), 0};
      return true;
    }
  }
}

bool ProcessGroup::ReadSignal(Event* event) {
  signalfd_siginfo info;
  while (read(signal_fd_, &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo == SIGCHLD) {
      // One SIGCHLD may stand for several children; Next asks again before it blocks.
      if (ReapOne(event)) return true;
      continue;
    }
    *event = {Event::Kind::kSignal, 0, 0, static_cast<int>(info.ssi_signo)};
    return true;
  }
  return false;
}

void ProcessGroup::ReadPipe(size_t process, Stream stream) {
  char chunk[1 << 14];
  // More than a pipe holds, but bounded, for a child that prints without pause.
  for (int i = 0; i < 32; ++i) {
    Pipe& pipe = children_[process].pipes[static_cast<size_t>(stream)];
    if (pipe.fd < 0) return;
    const ssize_t size = read(pipe.fd, chunk, sizeof(chunk));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) return;
    if (size <= 0) return ClosePipe(process, stream);
    if (pipe.partial.empty()) pipe.since = Clock::now();
    pipe.partial.append(chunk, static_cast<size_t>(size));
    // The handler may start a child, which moves `pipe`: so it gets a copy of the text.
    std::string text = std::exchange(pipe.partial, "");
    const size_t num_bytes = text.size();
    std::string rest = HandOverEnded(process, stream, std::move(text));
    if (rest.size() < num_bytes) {
      children_[process].pipes[static_cast<size_t>(stream)].since = Clock::now();
    }
    if (rest.size() >= kLongestLine) {
      on_line_(process, stream, rest, End::kNone);
      rest.clear();
    }
    children_[process].pipes[static_cast<size_t>(stream)].partial = std::move(rest);
  }
}

std::string ProcessGroup::HandOverEnded(size_t process, Stream stream, std::string text) {
  const char* ends = patience_.count() > 0 ? "\n\r" : "\n";
  size_t begin = 0;
  for (size_t end; (end = text.find_first_of(ends, begin)) != std::string::npos; begin = end + 1) {
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    // "\r\n" counts as one end.
    if (text[end] == '\r' && end + 1 < text.size() && text[end + 1] == '\n') ++end;
    on_line_(process, stream, line, text[end] == '\n' ? End::kNewline : End::kReturn);
  }
  return text.substr(begin);
}

bool ProcessGroup::HandOverPartial(std::optional<Clock::time_point>* next) {
  if (patience_.count() == 0) return false;
  bool handed_over = false;
  const auto now = Clock::now();
  for (size_t i = 0; i < children_.size(); ++i) {
    for (const Stream stream : {Stream::kOut, Stream::kError}) {
      Pipe& pipe = children_[i].pipes[static_cast<size_t>(stream)];
      if (pipe.partial.empty()) continue;
      const auto due = pipe.since + patience_;
      if (due <= now) {
        on_line_(i, stream, std::exchange(pipe.partial, ""), End::kNone);
        handed_over = true;
      } else if (!*next || due < **next) {
        *next = due;
      }
    }
  }
  return handed_over;
}

void ProcessGroup::ClosePipe(size_t process, Stream stream) {
  Pipe& pipe = children_[process].pipes[static_cast<size_t>(stream)];
  if (pipe.fd >= 0) close(pipe.fd);
  pipe.fd = -1;
  const std::string rest = std::move(pipe.partial);
  pipe.partial.clear();
  if (!rest.empty()) on_line_(process, stream, rest, End::kNewline);
}

void ProcessGroup::Write(size_t process, std::string_view text) {
  const int fd = children_[process].input;
  while (fd >= 0 && !text.empty()) {
    const ssize_t size = write(fd, text.data(), text.size());
    if (size < 0 && errno == EINTR) continue;
    // The child has closed its input or ended, which is its own affair (SIGPIPE is ignored).
    if (size <= 0) return;
    text.remove_prefix(static_cast<size_t>(size));
  }
}

void ProcessGroup::Signal(size_t process, int signal) {
  // Only while it is not reaped: its number may belong to another process afterwards.
  if (children_[process].alive) kill(-children_[process].pid, signal);
}

void ProcessGroup::KillAll() {
  KillDescendants([this](pid_t pid, int) {
    for (Child& child : children_) {
      if (child.pid == pid) child.alive = false;
    }
  });
  for (size_t i = 0; i < children_.size(); ++i) {
    for (const Stream stream : {Stream::kOut, Stream::kError}) {
      ReadPipe(i, stream);
      ClosePipe(i, stream);
    }
    if (children_[i].input >= 0) close(children_[i].input);
    children_[i].input = -1;
  }
}

size_t ProcessGroup::num_alive() const {
  return static_cast<size_t>(std::count_if(children_.begin(), children_.end(),
                                           [](const Child& child) { return child.alive; }));
}

std::chrono::nanoseconds ProcessGroup::CpuTime(size_t process) const {
  clockid_t clock;
  timespec time = {};
  if (clock_getcpuclockid(children_[process].pid, &clock) == 0) clock_gettime(clock, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

int64_t ResidentBytesOf(const std::string& process) {
  std::ifstream file("/proc/" + process + "/smaps_rollup");
  for (std::string field; file >> field;) {
    int64_t kib = 0;
    if (field == "Pss:" && file >> kib) return kib * 1024;
  }
  return 0;
}

int64_t ProcessGroup::ResidentBytes(size_t process) const {
  return ResidentBytesOf(absl::StrFormat("%d", children_[process].pid));
}

namespace {

int64_t PageFaultsOf(const std::string& stat_file) {
  std::ifstream file(stat_file);
  std::string line;
  std::getline(file, line);
  // Behind the name, which may have any characters, come the state, 6 numbers, and then the faults
  // of both kinds, each followed by that of the children.
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(line.substr(name_end + 1));
  std::string skipped;
  for (int i = 0; i < 7; ++i) fields >> skipped;
  int64_t minor = 0;
  int64_t children = 0;
  int64_t major = 0;
  fields >> minor >> children >> major;
  return minor + major;
}

int64_t ContextSwitchesOf(const std::string& status_file) {
  std::ifstream file(status_file);
  int64_t sum = 0;
  for (std::string line; std::getline(file, line);) {
    const size_t at = line.find("ctxt_switches:");
    if (at != std::string::npos) sum += std::atoll(line.c_str() + line.find(':') + 1);
  }
  return sum;
}

}  // namespace

ProcessGroup::Events ProcessGroup::CountEvents(size_t process) const {
  const std::string directory = absl::StrFormat("/proc/%d", children_[process].pid);
  Events events{.page_faults = PageFaultsOf(directory + "/stat")};
  std::error_code gone;
  for (const auto& task : std::filesystem::directory_iterator(directory + "/task", gone)) {
    events.context_switches += ContextSwitchesOf(task.path() / "status");
  }
  return events;
}

}  // namespace bdn::cli
