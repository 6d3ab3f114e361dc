#include "cli/local_job.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace bdn::cli {
namespace {

// A machine under load may take seconds to load the daemon's libraries.
constexpr std::chrono::seconds kSchedulerStart{30};
// The exit code of ssh where it fails itself; any other is the remote command's.
constexpr int kSshFailed = 255;
// The scheduler's line once the job has begun.
constexpr char kBegunLine[] = "all nodes have joined";
// The scheduler's line at the end of a job.
constexpr char kDoneLine[] = "the job is done";
// The same of a job that has gone on without some workers, up to their names.
constexpr char kDoneWithoutLine[] = "the job is done, without ";
// The scheduler's line when it has taken workers in, up to their names.
constexpr char kTakenInLine[] = " workers: with ";
constexpr std::string_view kGoneLine = " workers: without ";
// The scheduler's line when a signal ends it, with 0, and its journal keeps the job.
constexpr char kLeftLine[] = "the job goes on: its nodes wait up to";
// A server's line when it has handed its keys over, as SIGTERM told it to go, and ends with 0.
constexpr char kHandedOverLine[] = "has left the job, which goes on";
// The exit code of a program that the job has gone on without, and that may be started anew.
constexpr int kEvictedCode = 75;
constexpr char kLoopback4[] = "127.0.0.1";
constexpr char kLoopback6[] = "::1";
// A line that does not end is shown after this time as far as it has come.
constexpr std::chrono::milliseconds kPatience{200};
constexpr size_t kMostOthers = 8;  // named besides the cause

using Json = nlohmann::ordered_json;

// Returns a line as a JSON object. Lines of daemons are such objects already, and stay as they are.
std::string AsJson(std::string_view tag, std::string_view line) {
  if (!line.empty() && line.front() == '{' && Json::accept(line)) return std::string(line);
  const Json object = {
      {"time", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone())},
      {"level", "info"},
      {"role", tag},
      {"message", line}};
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string RandomJobId() {
  uint64_t number = 0;
  [[maybe_unused]] const ssize_t size = getrandom(&number, sizeof(number), 0);
  return absl::StrFormat("job-%016x", number);
}

// Returns whether the environment or the settings give the variable a value.
bool IsSaid(const char* name, const Variables& settings) {
  const char* exported = getenv(name);
  if (exported != nullptr && *exported != '\0') return true;
  for (const auto& [variable, value] : settings) {
    if (variable == name && !value.empty()) return true;
  }
  return false;
}

// Returns whether two descriptors are one terminal, pipe or file.
bool IsOneFile(int one, int other) {
  struct stat first = {};
  struct stat second = {};
  return fstat(one, &first) == 0 && fstat(other, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

bool CanListenAt(const std::string& address) {
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.c_str(), nullptr, &hints, &found) != 0) return false;
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool can = fd >= 0 && bind(fd, found->ai_addr, found->ai_addrlen) == 0;
  if (fd >= 0) close(fd);
  freeaddrinfo(found);
  return can;
}

// Returns a socket that is bound to a port of the kernel's choice at all addresses and never
// listens. The kernel then gives the port to no other process, but one that binds it with
// SO_REUSEADDR, as torch does, may listen at it.
int HoldPort(std::string* port) {
  const int on = 1;
  const int off = 0;
  sockaddr_in6 address = {};
  address.sin6_family = AF_INET6;
  socklen_t size = sizeof(address);
  int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const auto bind_it = [&] {
    return fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
           bind(fd, generic, size) == 0 && getsockname(fd, generic, &size) == 0;
  };
  bool held = bind_it();
  if (!held) {  // no IPv6 here
    if (fd >= 0) close(fd);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    address = {};
    address.sin6_family = AF_INET;  // of which a port of 0 at all addresses looks the same
    size = sizeof(sockaddr_in);
    held = bind_it();
  }
  // A sockaddr_in has its port at the same offset.
  *port = absl::StrFormat("%d", held ? ntohs(address.sin6_port) : 0);
  return fd;
}

// Returns a port for another machine, where none can be held: one below those from which kernels
// choose, so that no connection there takes it by chance.
std::string PortBelowChosenOnes() {
  constexpr int kFirst = 10000;
  int first_chosen = 32768;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> first_chosen;
  const int count = std::max(first_chosen - kFirst, 1000);
  unsigned number = 0;
  [[maybe_unused]] const ssize_t size = getrandom(&number, sizeof(number), 0);
  return absl::StrFormat("%d", kFirst + static_cast<int>(number % static_cast<unsigned>(count)));
}

// Returns whether the reason of a host daemon names a process of it as the cause.
bool Names(const std::string& reason, const std::string& process) {
  return reason.find(process + " (process") != std::string::npos;
}

// Writes all of `text`. Returns false when `fd` has no reader any more.
bool WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t size = write(fd, text.data(), text.size());
    if (size > 0) {
      text.remove_prefix(static_cast<size_t>(size));
    } else if (errno == EAGAIN) {
      // Another process may have made the terminal or pipe that we share non-blocking.
      pollfd polled = {fd, POLLOUT, 0};
      poll(&polled, 1, -1);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::string ChooseLoopback(const std::function<bool(const std::string& address)>& can_listen) {
  const bool is_only_one = !can_listen(kLoopback4) && can_listen(kLoopback6);
  return is_only_one ? kLoopback6 : kLoopback4;
}

std::string Loopback() { return ChooseLoopback(CanListenAt); }

std::string ProgramBeside(const std::string& name) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return (self.parent_path() / name).string();
}

LocalJob::LocalJob(JobOptions options, std::string directory, WorkerLine worker_line)
    : options_(std::move(options)),
      directory_(std::move(directory)),
      worker_line_(std::move(worker_line)),
      job_id_(RandomJobId()),
      printer_(IsOneFile(STDOUT_FILENO, STDERR_FILENO)),
      group_([this](size_t process, ProcessGroup::Stream stream, std::string_view text,
                    ProcessGroup::End end) { HandleText(process, stream, text, end); },
             // A caller that reads lines, or objects of JSON, needs them whole.
             worker_line_ || options_.json_lines ? std::chrono::milliseconds(0) : kPatience) {
  if (options_.remote.empty()) {
    master_port_fd_ = HoldPort(&master_port_);
  } else {
    master_port_ = PortBelowChosenOnes();
  }
}

LocalJob::~LocalJob() {
  for (const int fd : {master_port_fd_, scheduler_port_fd_}) {
    if (fd >= 0) close(fd);
  }
}

void LocalJob::HandleText(size_t process, ProcessGroup::Stream stream, std::string_view text,
                          ProcessGroup::End end) {
  if (process == kScheduler) {
    has_begun_ |= text.find(kBegunLine) != std::string_view::npos;
    has_left_job_ |= text.find(kLeftLine) != std::string_view::npos;
    NoteTakenIn(text);
    NoteGone(text);
    if (text.find(kDoneLine) != std::string_view::npos) NoteEndOfProgram();
    NoteOutlived(text);
  }
  if (is_server(process) && text.find(kHandedOverLine) != std::string_view::npos) {
    handed_over_.insert(process);
  }
  if (worker_line_ && is_worker(process) && stream == ProcessGroup::Stream::kOut) {
    return worker_line_(static_cast<int>(process - worker(0)), text);
  }
  // Standard error is filtered by whole lines. A piece passes unless the filter holds lines of its
  // process back, before which it must not be printed.
  const bool is_whole = end == ProcessGroup::End::kNewline;
  if (options_.json_lines || stream == ProcessGroup::Stream::kOut ||
      (!is_whole && !echoes_.Holds(process))) {
    return Print(stream, group_.name(process), text, end);
  }
  for (const std::string& line : echoes_.Pass(process, text)) {
    Print(stream, group_.name(process), line);
  }
}

void LocalJob::NoteOutlived(std::string_view text) {
  const size_t at = text.find(kDoneWithoutLine);
  if (at == std::string_view::npos) return;
  text.remove_prefix(at + strlen(kDoneWithoutLine));
  text = text.substr(0, text.find('"'));  // the end of a message in JSON
  const std::vector<std::string> names = absl::StrSplit(std::string(text), ", ");
  for (const std::string& name : names) {
    for (size_t i = worker(0); i < group_.size(); ++i) {
      if (group_.alive(i) && IsNode(i, name)) outlived_.push_back(i);
    }
  }
  if (!outlived_.empty()) outlived_until_ = Clock::now() + options_.linger;
}

void LocalJob::EndOutlived() {
  const bool is_first = !std::exchange(outlived_were_told_, true);
  for (const size_t process : outlived_) {
    if (!group_.alive(process)) continue;
    if (is_first) {
      Say(absl::StrFormat("the job is done without %s (pid %d), which is told to end",
                          group_.name(process), group_.pid(process)));
    }
    Signal(process, is_first ? SIGTERM : SIGKILL);
  }
  outlived_until_.reset();
  if (is_first) outlived_until_ = Clock::now() + options_.grace;
}

void LocalJob::Print(ProcessGroup::Stream stream, std::string_view tag, std::string_view text,
                     ProcessGroup::End end) {
  Write(stream,
        options_.json_lines ? AsJson(tag, text) + "\n" : printer_.Put(stream, tag, text, end));
}

void LocalJob::Write(ProcessGroup::Stream stream, std::string_view text) {
  const int fd = stream == ProcessGroup::Stream::kOut ? STDOUT_FILENO : STDERR_FILENO;
  if (output_lost_ || WriteAll(fd, text)) return;
  // A program ends by SIGPIPE when its reader has gone; so does this one, but with everything that
  // it started.
  output_lost_ = true;
  kill(getpid(), SIGTERM);
}

absl::Status LocalJob::MakeToken() {
  for (const char* secret : {"BANDONEON_TOKEN", "BANDONEON_TOKEN_FILE"}) {
    if (IsSaid(secret, options_.settings)) return absl::OkStatus();
  }
  uint64_t words[4];
  if (getrandom(words, sizeof(words), 0) != sizeof(words)) {
    return absl::UnavailableError("the system has no random bytes");
  }
  for (const uint64_t word : words) absl::StrAppendFormat(&token_, "%016x", word);
  token_file_ = directory_ + "/token";
  const int fd = open(token_file_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  const bool written = fd >= 0 && WriteAll(fd, token_ + "\n");
  if (fd >= 0) close(fd);
  if (written) return absl::OkStatus();
  return absl::UnavailableError(absl::StrFormat("cannot write %s", token_file_));
}

absl::Status LocalJob::StartDaemon(const std::string& name, std::vector<std::string> argv) {
  return group_.Start(DaemonSpec(name, std::move(argv))).status();
}

ProcessSpec LocalJob::DaemonSpec(const std::string& name, std::vector<std::string> argv) const {
  argv[0] = ProgramBeside(argv[0]);
  ProcessSpec spec = {name, std::move(argv), options_.settings};
  if (!scheduler_address_.empty()) {
    spec.variables.emplace_back("BANDONEON_SCHEDULER", scheduler_address_);
  }
  spec.variables.emplace_back("BANDONEON_JOB_ID", job_id_);
  if (!token_.empty()) spec.variables.emplace_back("BANDONEON_TOKEN", token_);
  return spec;
}

std::vector<std::string> LocalJob::SchedulerArgv(const std::string& listen,
                                                 const std::string& http_listen) const {
  const int nodes = options_.hosts > 0 ? options_.hosts : options_.workers;
  std::vector<std::string> argv = {"bandoneon-scheduler",
                                   absl::StrFormat("--workers=%d", nodes),
                                   absl::StrFormat("--servers=%d", options_.servers),
                                   "--listen=" + listen,
                                   "--port-file=" + PortFile(),
                                   "--failure-file=" + FailureFile()};
  if (!options_.seed.empty()) argv.push_back("--seed=" + options_.seed);
  if (!http_listen.empty()) {
    argv.push_back("--http-listen=" + http_listen);
    argv.push_back("--http-port-file=" + PagePortFile());
  }
  if (options_.restarts > 0 && !IsSaid("BANDONEON_JOURNAL", options_.settings)) {
    argv.push_back("--journal=" + directory_ + "/journal");
  }
  return argv;
}

std::vector<std::string> LocalJob::ServerArgv(int server) const {
  const std::string listen = options_.over_ipc
                                 ? absl::StrFormat("ipc://%s/server-%d", directory_, server)
                                 : "tcp://" + Advertised("0");
  std::vector<std::string> argv = {"bandoneon-server", absl::StrFormat("--rank=%d", server),
                                   "--listen=" + listen};
  if (options_.counts) argv.push_back("--metrics-file=" + MetricsFile(server));
  if (options_.advertise == kLoopback6 && !IsSaid("BANDONEON_HEALTH_LISTEN", options_.settings)) {
    argv.push_back("--health-listen=" + Advertised("0"));
  }
  return argv;
}

absl::Status LocalJob::StartDaemons() {
  if (absl::Status made = MakeToken(); !made.ok()) return made;
  // The watch begins before the scheduler does, so that its file is not missed.
  const int watch_fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  if (watch_fd < 0 ||
      inotify_add_watch(watch_fd, directory_.c_str(), IN_CLOSE_WRITE | IN_MOVED_TO) < 0) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("cannot watch %s: %s", directory_, strerror(errno)));
  }
  std::string port = "0";
  // Until a scheduler that was lost listens again, its nodes try to connect to its port. A kernel
  // that could choose it for their own ends might connect one of them with itself, and it would
  // have taken the port.
  if (options_.restarts > 0) scheduler_port_fd_ = HoldPort(&port);
  absl::Status status =
      StartDaemon("scheduler", SchedulerArgv(Advertised(port), options_.http_listen));
  if (status.ok()) status = AwaitPort(watch_fd);
  close(watch_fd);
  for (int i = 0; status.ok() && i < options_.servers; ++i) {
    status = StartDaemon(absl::StrFormat("server %d", i), ServerArgv(i));
  }
  for (int i = 0; status.ok() && i < options_.hosts; ++i) {
    status = StartDaemon(absl::StrFormat("host %d", i), HostArgv(i));
    if (status.ok()) worker_restarts_.Started(host(i), Clock::now());
  }
  return status;
}

std::vector<std::string> LocalJob::HostArgv(int number) const {
  return {"bandoneon-worker", absl::StrFormat("--rank=%d", number),
          "--attach=" + HostAddress(number), absl::StrFormat("--processes=%d", workers_per_host())};
}

std::string LocalJob::Advertised(const std::string& port) const {
  const bool has_colons = options_.advertise.find(':') != std::string::npos;
  if (has_colons) return absl::StrFormat("[%s]:%s", options_.advertise, port);
  return absl::StrFormat("%s:%s", options_.advertise, port);
}

std::pair<size_t, int> LocalJob::PlaceOf(int rank) const {
  if (options_.remote.empty()) {
    return {static_cast<size_t>(rank / workers_per_host()), rank % workers_per_host()};
  }
  size_t host = 0;
  int before = rank;
  while (before >= options_.remote[host].workers) before -= options_.remote[host++].workers;
  return {host, before};
}

std::string LocalJob::HostAddress(int number) const {
  return absl::StrFormat("unix:@bandoneon-%s-%d", job_id_, number);
}

absl::Status LocalJob::AwaitPort(int watch_fd) {
  const auto deadline = Clock::now() + kSchedulerStart;
  while (true) {
    const ProcessGroup::Event event = group_.Next(deadline, watch_fd);
    switch (event.kind) {
      case ProcessGroup::Event::Kind::kReadable: {
        char drained[4096];
        // The event may be of another file of the directory, so it is drained and the port file
        // read anyhow.
        while (read(watch_fd, drained, sizeof(drained)) > 0) {
        }
        int port = 0;
        if (std::ifstream(PortFile()) >> port && port > 0) {
          scheduler_address_ = Advertised(absl::StrFormat("%d", port));
          ReadPageUrl();
          return absl::OkStatus();
        }
        break;
      }
      case ProcessGroup::Event::Kind::kLines:
        break;
      case ProcessGroup::Event::Kind::kEnded:
        code_ = std::max(event.code, 1);
        return absl::UnavailableError("the scheduler " + DescribeCode(event.code));
      case ProcessGroup::Event::Kind::kSignal:
        code_ = 128 + event.signal;
        return absl::CancelledError(absl::StrFormat("ended by %s", strsignal(event.signal)));
      case ProcessGroup::Event::Kind::kTimeout:
        return absl::DeadlineExceededError(absl::StrFormat(
            "the scheduler did not say within %d s where it listens", kSchedulerStart.count()));
    }
  }
}

void LocalJob::ReadPageUrl() {
  // The scheduler writes this file before the port file, which has been read.
  int port = 0;
  if (!(std::ifstream(PagePortFile()) >> port)) return;
  const std::string host = options_.http_listen.substr(0, options_.http_listen.find_last_of(':'));
  page_address_ = absl::StrFormat("%s:%d", host, port);
  page_url_ = absl::StrFormat("http://%s/", page_address_);
}

std::pair<ProcessSpec, std::string> LocalJob::WorkerSpec(int number, int restarts) const {
  const WorkerCommand& asked = workers_[static_cast<size_t>(number)];
  const std::string rank = absl::StrFormat("%d", number);
  const std::string size = absl::StrFormat("%d", options_.workers);
  const auto [host, before] = PlaceOf(number);
  const bool is_here = options_.remote.empty();
  const std::string local_rank = absl::StrFormat("%d", before);
  const std::string local_size =
      absl::StrFormat("%d", is_here ? workers_per_host() : options_.remote[host].workers);
  ProcessSpec spec = {"worker " + rank, asked.argv, options_.settings, asked.wants_input,
                      options_.input};
  Variables variables = {{"BANDONEON_SCHEDULER", scheduler_address_},
                         {"BANDONEON_JOB_ID", job_id_},
                         // The variables of torch.distributed, so that DDP runs unchanged.
                         {"RANK", rank},
                         {"LOCAL_RANK", local_rank},
                         {"GROUP_RANK", absl::StrFormat("%d", host)},
                         {"WORLD_SIZE", size},
                         {"LOCAL_WORLD_SIZE", local_size},
                         {"MASTER_ADDR", is_here ? options_.advertise : HostOf(options_.remote[0])},
                         {"MASTER_PORT", master_port_},
                         // Python would hold its lines back, as its output is a pipe.
                         {"PYTHONUNBUFFERED", "1"}};
  if (options_.hosts == 0) {
    variables.emplace_back("BANDONEON_RANK", rank);
  } else {
    variables.emplace_back("BANDONEON_ATTACH", HostAddress(static_cast<int>(host)));
    variables.emplace_back("BANDONEON_LOCAL_RANK", local_rank);
    variables.emplace_back("BANDONEON_LOCAL_SIZE", local_size);
  }
  // Also as torchrun has it. A name of ours would be a setting.
  if (restarts > 0) {
    variables.emplace_back("TORCHELASTIC_RESTART_COUNT", absl::StrFormat("%d", restarts));
  }
  spec.variables.insert(spec.variables.end(), variables.begin(), variables.end());
  if (!token_.empty()) spec.variables.emplace_back("BANDONEON_TOKEN", token_);
  if (is_here) return {std::move(spec), ""};
  // Ours come behind those of the environment: of two equal names the last one counts.
  Variables all = HandedOver();
  all.insert(all.end(), spec.variables.begin(), spec.variables.end());
  const RemoteHost& place = options_.remote[host];
  return {{spec.name + " at " + place.destination,
           RemoteArgv(place, options_.ssh_options, options_.grace),
           {},
           true},
          RemoteInput(std::filesystem::current_path().string(), all, asked.argv)};
}

absl::Status LocalJob::StartWorker(const std::vector<std::string>& argv, bool wants_input) {
  workers_.push_back({argv, wants_input});
  const auto [spec, input] = WorkerSpec(static_cast<int>(workers_.size()) - 1, 0);
  const auto started = group_.Start(spec);
  if (!started.ok()) {
    code_ = 127;
    return started.status();
  }
  worker_restarts_.Started(*started, Clock::now());
  if (!input.empty()) group_.Write(*started, input);
  return absl::OkStatus();
}

void LocalJob::SetTimer(Clock::time_point when, std::function<void()> task) {
  timer_ = when;
  timer_task_ = std::move(task);
}

void LocalJob::Enter(Phase phase, std::chrono::milliseconds limit) {
  phase_ = phase;
  deadline_ = Clock::now() + limit;
  // Whatever ends the job, a worker that starts now would only have to be ended, too.
  (void)worker_restarts_.TakeAll();
}

void LocalJob::Signal(size_t process, int signal) {
  if (is_remote(process)) {
    // A signal to ssh itself would end the connection; the script there takes names of signals from
    // its input.
    group_.Write(process, absl::StrFormat("%s\n", sigabbrev_np(signal)));
  } else {
    group_.Signal(process, signal);
  }
}

void LocalJob::SignalAll(bool workers, int signal) {
  for (size_t i = 0; i < group_.size(); ++i) {
    if (is_worker(i) == workers) Signal(i, signal);
  }
}

bool LocalJob::WorkersAlive() const {
  for (size_t i = worker(0); i < group_.size(); ++i) {
    if (group_.alive(i)) return true;
  }
  return false;
}

void LocalJob::Fail(int code, std::string_view why) {
  if (code_ != 0 || phase_ != Phase::kRunning) return;
  code_ = code;
  Say(why);
  Enter(Phase::kLingering, options_.linger);
}

void LocalJob::HandleEnd(size_t process, int code) {
  for (const std::string& line : echoes_.Flush(process)) {
    Print(ProcessGroup::Stream::kError, group_.name(process), line);
  }
  const bool told = phase_ == Phase::kEndingWorkers || phase_ == Phase::kEndingDaemons;
  // A process that was told to end may end by the signal that told it; one that was killed
  // otherwise has failed.
  const bool by_signal = code == 128 + SIGTERM || (code > 128 && code == code_);
  const bool is_well =
      code == 0 && !IsLostScheduler({process, code}) && !IsLostServer({process, code});
  const bool expected = is_well || (told && (code <= 128 || by_signal));
  // Nobody needs a server any more once all workers have ended.
  const bool is_late_kill = phase_ == Phase::kEndingDaemons && options_.may_lose_servers &&
                            is_server(process) && code == 128 + SIGKILL;
  if (is_late_kill) return;
  if (IsEndOfLostHost({process, code})) return;
  if (is_well && HasLeftOthers({process, code})) return;
  // A worker leaves when all have done their work, so one that has ended with 0 tells that of all,
  // also where the log does not. A program that left the others to themselves is taken for that,
  // too.
  if (is_well && (is_worker(process) || process == kScheduler)) NoteEndOfProgram();
  if (expected || IsStartedAgain({process, code}) || GoesOnWithout({process, code})) return;
  HandleFailure({process, code});
}

void LocalJob::HandleFailure(const Failure& ended) {
  failures_.push_back(ended);
  // The cause, which is known when all have ended, is named last. Until then the first to end is
  // said at once, as the others may take a while.
  if (failures_.size() == 1 && is_worker(ended.process)) Say(DescribeEnd(ended));
  if (is_remote(ended.process) && ended.code == kSshFailed) {
    Say("255 is what ssh returns where it fails itself: try ssh -o BatchMode=yes HOST true");
  }
  if (phase_ == Phase::kRunning) Enter(Phase::kLingering, options_.linger);
}

std::string LocalJob::DescribeEnd(const Failure& ended) const {
  // ssh's own code is no signal.
  const bool is_of_ssh = is_remote(ended.process) && ended.code == kSshFailed;
  return absl::StrFormat("%s (pid %d) %s", group_.name(ended.process), group_.pid(ended.process),
                         // A daemon that ends well while it is needed was told to.
                         ended.code == 0 && ended.process < host(0) ? "was told to end"
                         : is_of_ssh ? absl::StrFormat("exited with code %d", ended.code)
                                     : DescribeCode(ended.code));
}

std::optional<size_t> LocalJob::MemberOf(size_t process) const {
  if (process < host(0)) return std::nullopt;
  if (options_.hosts == 0) return process - worker(0);
  return is_worker(process) ? (process - worker(0)) / static_cast<size_t>(workers_per_host())
                            : process - host(0);
}

bool LocalJob::GoesOnWithout(const Failure& ended) {
  if (is_server(ended.process)) return GoesOnWithoutServer(ended);
  const std::optional<size_t> member = MemberOf(ended.process);
  if (options_.min_workers == 0 || phase_ != Phase::kRunning || !member) return false;
  // A job that lacks a worker before it has begun never begins.
  if (!MayHaveBegun()) return false;
  // With hosts IsEndOfLostHost has decided.
  if (options_.hosts > 0) return false;
  if (IsFailedNewcomer(ended)) return true;
  const bool is_lost = ended.code > 128 || ended.code == kEvictedCode;
  if (!is_lost || !MayLoseOneMore()) return false;
  lost_.push_back(ended);
  if (std::ranges::count(outlived_, ended.process) > 0) return true;  // the job has ended
  if (IsToStartAgain(ended)) return true;
  SayItGoesOn(ended);
  return true;
}

bool LocalJob::MayLoseOneMore() const {
  return NumMembers() - lost_.size() > static_cast<size_t>(options_.min_workers);
}

size_t LocalJob::NumMembers() const {
  return static_cast<size_t>(options_.hosts > 0 ? options_.hosts : options_.workers);
}

void LocalJob::SayItGoesOn(const Failure& ended) {
  Say(absl::StrFormat("%s; the job goes on with %d of %d", DescribeEnd(ended),
                      NumMembers() - lost_.size(), NumMembers()));
}

// ---- Hosts: a daemon and its processes are lost together, and started again together

bool LocalJob::IsEndOfLostHost(const Failure& ended) {
  const std::optional<size_t> member = MemberOf(ended.process);
  if (options_.hosts == 0 || !member || options_.min_workers == 0) return false;
  if (phase_ != Phase::kRunning || !MayHaveBegun()) return false;
  const size_t daemon = host(*member);
  const bool is_first = !lost_hosts_.contains(daemon);
  if (is_first) {
    const bool is_lost = ended.code > 128 || ended.code == kEvictedCode ||
                         (ended.code == 0 && !is_at_end_ && gone_.contains(daemon)) ||
                         (ended.code != 0 && worker_restarts_.IsNewcomer(daemon));
    if (!is_lost || !MayLoseOneMore()) return false;
    lost_.push_back(ended);
  }
  LostHost& lost = lost_hosts_[daemon];
  // The others of a lost host end with errors of their own.
  lost.is_to_come_back |= ended.code > 128 || ended.code == kEvictedCode;
  const bool may_restart = num_restarts_ < options_.restarts && !is_at_end_;
  const bool has_ended = std::ranges::count(outlived_, ended.process) > 0;
  if (is_first && !may_restart && !has_ended) SayItGoesOn(ended);
  if (!may_restart || IsAnyAlive(*member)) return true;
  EndHost(daemon);
  return true;
}

bool LocalJob::IsAnyAlive(size_t member) const {
  if (group_.alive(host(member))) return true;
  for (size_t i = worker(0); i < group_.size(); ++i) {
    if (is_worker(i) && MemberOf(i) == member && group_.alive(i)) return true;
  }
  return false;
}

void LocalJob::EndHost(size_t daemon) {
  const std::string end = DescribeEnd(*LossOf(daemon));
  if (!lost_hosts_[daemon].is_to_come_back) {
    return Say(absl::StrFormat(
        "%s after its host had left the job; %s is not started again, and the job goes on without "
        "it",
        end, group_.name(daemon)));
  }
  const std::chrono::seconds delay = worker_restarts_.Plan(daemon, Clock::now());
  Say(absl::StrFormat("%s; %s is started again with its processes in %d s, restart %d of %d", end,
                      group_.name(daemon), delay.count(), ++num_restarts_, options_.restarts));
}

std::vector<LocalJob::Failure>::iterator LocalJob::LossOf(size_t daemon) {
  return std::ranges::find_if(
      lost_, [&](const Failure& each) { return MemberOf(each.process) == MemberOf(daemon); });
}

void LocalJob::StartHostAgain(size_t daemon) {
  const size_t member = *MemberOf(daemon);
  const int restarts = worker_restarts_.count(daemon) + 1;
  const std::string end = DescribeEnd(*LossOf(daemon));
  absl::Status started = group_.StartAgain(
      daemon, DaemonSpec(group_.name(daemon), HostArgv(static_cast<int>(member))));
  for (size_t i = worker(0); started.ok() && i < group_.size(); ++i) {
    if (MemberOf(i) != member) continue;
    started = group_.StartAgain(i, WorkerSpec(static_cast<int>(i - worker(0)), restarts).first);
  }
  // The job goes on without it.
  if (!started.ok()) return Say(std::string(started.message()));
  worker_restarts_.Started(daemon, Clock::now());
  gone_.erase(daemon);
  lost_hosts_.erase(daemon);
  lost_.erase(LossOf(daemon));
  restarts_[daemon].push_back(end);
}

bool LocalJob::IsToStartAgain(const Failure& ended) {
  if (num_restarts_ >= options_.restarts || is_at_end_) return false;
  const std::chrono::seconds delay = worker_restarts_.Plan(ended.process, Clock::now());
  Say(absl::StrFormat("%s; it is started again in %d s, restart %d of %d", DescribeEnd(ended),
                      delay.count(), ++num_restarts_, options_.restarts));
  return true;
}

void LocalJob::StartWorkerAgain(size_t process) {
  const std::string end = DescribeEnd(*std::ranges::find(lost_, process, &Failure::process));
  const auto [spec, input] =
      WorkerSpec(static_cast<int>(process - worker(0)), worker_restarts_.count(process) + 1);
  const absl::Status started = group_.StartAgain(process, spec);
  // The job goes on without it.
  if (!started.ok()) return Say(std::string(started.message()));
  worker_restarts_.Started(process, Clock::now());
  gone_.erase(process);
  if (!input.empty()) group_.Write(process, input);
  std::erase_if(lost_, [process](const Failure& each) { return each.process == process; });
  restarts_[process].push_back(end);
}

bool LocalJob::IsFailedNewcomer(const Failure& ended) {
  const bool is_lost = ended.code > 128 || ended.code == kEvictedCode;
  if (is_lost || !worker_restarts_.IsNewcomer(ended.process)) return false;
  Say(absl::StrFormat(
      "%s before the job had taken it in; it is not started again, and the job goes on without it",
      DescribeEnd(ended)));
  lost_.push_back(ended);
  return true;
}

void LocalJob::NoteEndOfProgram() {
  if (std::exchange(is_at_end_, true) || phase_ != Phase::kRunning) return;
  for (const size_t process : worker_restarts_.TakeAll()) {
    Say(absl::StrFormat("%s is not started again: the job is at its end", group_.name(process)));
  }
}

void LocalJob::NoteTakenIn(std::string_view text) {
  const size_t at = text.find(kTakenInLine);
  if (at == std::string_view::npos) return;
  const std::string names(text.substr(at));
  const std::set<size_t> newcomers = worker_restarts_.newcomers();
  for (const size_t process : newcomers) {
    const std::string name = absl::StrFormat(" %s (", NodeName(process));
    if (names.find(name) != std::string::npos) worker_restarts_.TakenIn(process);
  }
}

void LocalJob::NoteGone(std::string_view text) {
  const size_t at = text.find(kGoneLine);
  if (at == std::string_view::npos) return;
  const std::string_view name = text.substr(at + kGoneLine.size());
  for (size_t i = host(0); i < host(0) + NumMembers(); ++i) {
    const std::string own = NodeName(i);
    const bool is_longer = name.size() > own.size() && absl::ascii_isdigit(name[own.size()]);
    if (name.starts_with(own) && !is_longer) gone_.insert(i);
  }
}

std::string LocalJob::NodeName(size_t process) const {
  return absl::StrFormat("%s %d", options_.hosts > 0 ? "host" : "worker", process - host(0));
}

bool LocalJob::HasLeftOthers(const Failure& ended) {
  if (phase_ != Phase::kRunning || is_at_end_ || !gone_.contains(ended.process)) return false;
  Say(absl::StrFormat(
      "%s after it had left the job; it is not started again, and the job goes on without it",
      DescribeEnd(ended)));
  lost_.push_back(ended);
  return true;
}

void LocalJob::HandleRestarts(Clock::time_point now) {
  for (const size_t process : worker_restarts_.TakeDue(now)) {
    if (options_.hosts > 0) {
      StartHostAgain(process);
    } else {
      StartWorkerAgain(process);
    }
  }
}

bool LocalJob::IsLostServer(const Failure& ended) const {
  if (!is_server(ended.process) || !options_.may_lose_servers) return false;
  if (phase_ != Phase::kRunning) return false;
  return ended.code > 128 || ended.code == kEvictedCode ||
         (ended.code == 0 && handed_over_.contains(ended.process));
}

bool LocalJob::GoesOnWithoutServer(const Failure& ended) {
  // A job begins when all have joined, so one that has not begun needs all of them.
  if (!IsLostServer(ended) || !MayHaveBegun()) return false;
  int left = 0;
  for (size_t i = kScheduler + 1; i < host(0); ++i) left += group_.alive(i) ? 1 : 0;
  if (left == 0) return false;
  lost_servers_.push_back(ended);
  Say(absl::StrFormat("%s; the job goes on with %d of %d servers", DescribeEnd(ended), left,
                      options_.servers));
  return true;
}

bool LocalJob::IsLostScheduler(const Failure& ended) const {
  if (ended.process != kScheduler || options_.restarts == 0) return false;
  // Once the job ends, also because of another process, nobody needs the scheduler again.
  if (phase_ != Phase::kRunning) return false;
  return ended.code > 128 || (ended.code == 0 && has_left_job_);
}

bool LocalJob::IsStartedAgain(const Failure& ended) {
  const bool is_scheduler = IsLostScheduler(ended);
  if (!is_scheduler && !IsLostServer(ended)) return false;
  if (num_restarts_ >= options_.restarts) return false;
  const std::string end = DescribeEnd(ended);
  // A scheduler serves at the same addresses, which nodes and people know. A server tells its own
  // when it joins.
  const std::vector<std::string> argv =
      is_scheduler ? SchedulerArgv(scheduler_address_, page_address_)
                   : ServerArgv(static_cast<int>(ended.process - kScheduler) - 1);
  const absl::Status started =
      group_.StartAgain(ended.process, DaemonSpec(group_.name(ended.process), argv));
  if (!started.ok()) {
    Say(std::string(started.message()));
    return false;
  }
  if (is_scheduler) has_left_job_ = false;
  handed_over_.erase(ended.process);
  restarts_[ended.process].push_back(end);
  Say(absl::StrFormat("%s; it is started again, %d of %d times, and goes on with the job", end,
                      ++num_restarts_, options_.restarts));
  return true;
}

std::string LocalJob::WithRestarts(std::string line) const {
  for (const auto& [process, ends] : restarts_) {
    absl::StrAppendFormat(&line, "%s%s was started again ", line.empty() ? "" : "; ",
                          process == kScheduler ? "the scheduler" : group_.name(process));
    line += ends.size() == 1 ? "once, after " : absl::StrFormat("%d times, after ", ends.size());
    for (size_t i = 0; i < std::min(ends.size(), kMostOthers); ++i) {
      absl::StrAppendFormat(&line, "%s%s", i == 0 ? "" : ", ", ends[i]);
    }
    if (ends.size() > kMostOthers) {
      absl::StrAppendFormat(&line, " and %d more", ends.size() - kMostOthers);
    }
  }
  return line;
}

void LocalJob::SayHowItEnded() {
  std::string names;
  for (const auto* each : {&lost_, &lost_servers_}) {
    for (const Failure& lost : *each) {
      if (!names.empty()) names += "; ";
      names += DescribeEnd(lost);
    }
  }
  const bool tells_lost = code_ == 0 && !names.empty();
  const std::string line = WithRestarts(
      tells_lost ? "the job has ended without those that it lost: " + names : std::string());
  if (!line.empty()) Say(line);
}

// With hosts, a node of the job is a host daemon, which is lost when one of its workers is.
bool LocalJob::IsNode(size_t process, const std::string& name) const {
  if (is_remote(process)) return group_.name(process).rfind(name + " at ", 0) == 0;
  if (options_.hosts == 0) return group_.name(process) == name;
  if (process < host(0)) return group_.name(process) == name;
  const size_t number = is_worker(process)
                            ? (process - worker(0)) / static_cast<size_t>(workers_per_host())
                            : process - host(0);
  return name == absl::StrFormat("worker %d", number);
}

std::optional<LocalJob::Failure> LocalJob::FindCause(const std::vector<std::string>& names,
                                                     const std::string& reason) const {
  for (const std::string& name : names) {
    std::optional<Failure> found;
    for (const Failure& failure : failures_) {
      if (!IsNode(failure.process, name)) continue;
      // A host daemon ends because of one of its processes, which its reason names.
      const bool is_named = Names(reason, group_.name(failure.process));
      if (is_named || !found || (is_worker(failure.process) && !is_worker(found->process))) {
        found = failure;
      }
      if (is_named) break;
    }
    if (found) return found;
  }
  if (names.empty()) return std::nullopt;
  // The process hangs, or has ended as if all were well.
  std::optional<Failure> lost;
  for (size_t i = 0; i < group_.size(); ++i) {
    if (!IsNode(i, names.back())) continue;
    if (!lost || Names(reason, group_.name(i))) lost = Failure{i, 0};
  }
  return lost;
}

void LocalJob::SayOthers(const Failure& cause) {
  std::string names;
  size_t count = 0;
  for (const Failure& failure : failures_) {
    if (failure.process == cause.process) continue;
    if (++count > kMostOthers) continue;
    absl::StrAppendFormat(&names, "%s%s (pid %d) with code %d", names.empty() ? "" : ", ",
                          group_.name(failure.process), group_.pid(failure.process), failure.code);
  }
  if (count > kMostOthers) absl::StrAppendFormat(&names, " and %d more", count - kMostOthers);
  if (count > 0) Say("others that ended with errors: " + names);
}

bool LocalJob::SayCause() {
  if (code_ != 0) return false;
  // The file has the names of the nodes that went, a line each, then an empty line and the reason.
  std::ifstream file(FailureFile());
  std::vector<std::string> names;
  std::string reason;
  for (std::string line; std::getline(file, line) && !line.empty();) names.push_back(line);
  std::getline(file, reason);
  // A job that has failed may owe that to one that it was to go on without.
  const bool has_failed = !failures_.empty() || !names.empty();
  if (has_failed) {
    failures_.insert(failures_.end(), lost_.begin(), lost_.end());
    failures_.insert(failures_.end(), lost_servers_.begin(), lost_servers_.end());
  }
  std::optional<Failure> cause = FindCause(names, reason);
  if (!cause && !failures_.empty()) cause = failures_.front();
  if (!cause) return false;
  code_ = cause->code == 0 ? 1 : cause->code;
  SayOthers(*cause);
  const std::string end = cause->code == 0
                              ? absl::StrFormat("%s (pid %d) was lost", group_.name(cause->process),
                                                group_.pid(cause->process))
                              : DescribeEnd(*cause);
  Say(WithRestarts(
      absl::StrFormat("the job failed because %s%s%s", end, reason.empty() ? "" : ": ", reason)));
  return true;
}

bool LocalJob::HandleSignal(int signal) {
  if (signal == SIGUSR2) return false;  // our parent was killed, so nobody waits for an orderly end
  // The second signal, or one while the daemons end already: the user wants no more grace.
  if (phase_ == Phase::kEndingWorkers || phase_ == Phase::kEndingDaemons) return false;
  // A failure that came before stays the cause.
  if (failures_.empty() && code_ == 0) code_ = 128 + signal;
  echoes_.Interrupt();
  Say(absl::StrFormat("%s: passed on to the workers; once more kills everything",
                      strsignal(signal)));
  SignalAll(true, signal);
  Enter(Phase::kEndingWorkers, options_.grace);
  return true;
}

bool LocalJob::HandleTimeout() {
  const auto now = Clock::now();
  if (timer_ && *timer_ <= now) {
    timer_.reset();
    std::exchange(timer_task_, nullptr)();  // the task may set the next timer
  }
  if (outlived_until_ && *outlived_until_ <= now) EndOutlived();
  HandleRestarts(now);
  if (!deadline_ || *deadline_ > now) return true;
  // The grace of those that were told to end is over: all are killed.
  if (phase_ != Phase::kLingering) return false;
  SignalAll(true, SIGTERM);
  Enter(Phase::kEndingWorkers, options_.grace);
  return true;
}

int LocalJob::Wait() {
  bool go_on = true;
  while (go_on && group_.num_alive() > 0) {
    // Daemons end last: a server that ended earlier would make its workers fail.
    if (phase_ != Phase::kEndingDaemons && !WorkersAlive()) {
      SignalAll(false, SIGTERM);
      Enter(Phase::kEndingDaemons, options_.grace);
    }
    std::optional<Clock::time_point> wake = deadline_;
    for (const auto& other : {timer_, outlived_until_, worker_restarts_.next()}) {
      if (other && (!wake || *other < *wake)) wake = other;
    }
    const ProcessGroup::Event event = group_.Next(wake);
    switch (event.kind) {
      case ProcessGroup::Event::Kind::kEnded:
        HandleEnd(event.process, event.code);
        break;
      case ProcessGroup::Event::Kind::kSignal:
        go_on = HandleSignal(event.signal);
        break;
      case ProcessGroup::Event::Kind::kTimeout:
        go_on = HandleTimeout();
        break;
      case ProcessGroup::Event::Kind::kReadable:
      case ProcessGroup::Event::Kind::kLines:
        break;
    }
  }
  group_.KillAll();
  for (const auto stream : {ProcessGroup::Stream::kOut, ProcessGroup::Stream::kError}) {
    Write(stream, printer_.Finish(stream));
  }
  if (!SayCause()) SayHowItEnded();
  return code_;
}

int LocalJob::GiveUp(const absl::Status& why) {
  Say(std::string(why.message()));
  group_.KillAll();
  return code_ == 0 ? 1 : code_;
}

std::chrono::nanoseconds LocalJob::ServersCpu() const {
  std::chrono::nanoseconds sum{0};
  for (int i = 0; i < options_.servers; ++i) sum += group_.CpuTime(1 + static_cast<size_t>(i));
  return sum;
}

int64_t LocalJob::ServersResidentBytes() const {
  int64_t sum = 0;
  for (int i = 0; i < options_.servers; ++i)
    sum += group_.ResidentBytes(1 + static_cast<size_t>(i));
  return sum;
}

ProcessGroup::Events LocalJob::CountServersEvents() const {
  ProcessGroup::Events sum;
  for (int i = 0; i < options_.servers; ++i) {
    const ProcessGroup::Events events = group_.CountEvents(1 + static_cast<size_t>(i));
    sum.page_faults += events.page_faults;
    sum.context_switches += events.context_switches;
  }
  return sum;
}

std::string LocalJob::MetricsFile(int server) const {
  return absl::StrFormat("%s/server-%d.json", directory_, server);
}

std::chrono::nanoseconds LocalJob::WorkersCpu() const {
  std::chrono::nanoseconds sum{0};
  for (size_t i = 0; i < workers_.size(); ++i) sum += group_.CpuTime(worker(0) + i);
  return sum;
}

std::chrono::nanoseconds LocalJob::HostsCpu() const {
  std::chrono::nanoseconds sum{0};
  for (int i = 0; i < options_.hosts; ++i) sum += group_.CpuTime(host(i));
  return sum;
}

}  // namespace bdn::cli
