#include "cli/python_stack.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/file_descriptor.h"
#include "trace/trace_file.h"

namespace bdn::cli {
namespace {

constexpr char kMemoryName[] = "/memfd:bandoneon-stack-";
constexpr off_t kMostBytes = 64 << 10;
// The handler writes line by line. Nothing more is expected where nothing came for so long.
constexpr absl::Duration kPause = absl::Milliseconds(50);
constexpr double kSecond = 1e9;

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

double SecondsOf(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / kSecond;
}

// The state of a process, by /proc/PID/stat.
struct ProcessState {
  char letter = 0;   // 'T': stopped
  double began = 0;  // seconds of CLOCK_MONOTONIC
};

std::optional<ProcessState> StateOf(const std::string& folder) {
  const std::string stat = ReadAll(absl::StrCat(folder, "/stat"));
  // The name of the process may have spaces and brackets in it.
  const size_t name_end = stat.rfind(") ");
  if (name_end == std::string::npos) return std::nullopt;
  const std::vector<std::string> fields = absl::StrSplit(stat.substr(name_end + 2), ' ');
  // The state is field 3 of proc(5), and the start field 22, in ticks since the machine was booted.
  constexpr size_t kStart = 22 - 3;
  double ticks = 0;
  if (fields.size() <= kStart || !absl::SimpleAtod(fields[kStart], &ticks)) return std::nullopt;
  const double slept = SecondsOf(CLOCK_BOOTTIME) - SecondsOf(CLOCK_MONOTONIC);
  return ProcessState{fields[0].empty() ? '\0' : fields[0][0],
                      ticks / static_cast<double>(sysconf(_SC_CLK_TCK)) - slept};
}

// A process's memory for its stack, and the signal that has it written.
struct StackMemory {
  FileDescriptor file;
  int signal = 0;
};

// Returns whether the process handles the signal, which would end it otherwise.
bool Handles(const std::string& folder, int signal) {
  constexpr char kCaught[] = "SigCgt:\t";
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(ReadAll(folder + "/status"), '\n'))) {
    uint64_t caught = 0;
    if (!line.starts_with(kCaught)) continue;
    return absl::SimpleHexAtoi(line.substr(std::size(kCaught) - 1), &caught) &&
           ((caught >> (signal - 1)) & 1) != 0;
  }
  return false;
}

std::optional<StackMemory> FindMemory(const std::string& folder) {
  const std::string descriptors = absl::StrCat(folder, "/fd");
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(descriptors.c_str()), closedir);
  if (directory == nullptr) return std::nullopt;
  while (const dirent* entry = readdir(directory.get())) {
    const std::string path = absl::StrCat(descriptors, "/", entry->d_name);
    char target[256] = {};
    const ssize_t length = readlink(path.c_str(), target, sizeof(target) - 1);
    std::string_view name(target, length > 0 ? static_cast<size_t>(length) : 0);
    if (!name.starts_with(kMemoryName)) continue;
    name.remove_prefix(std::size(kMemoryName) - 1);
    name = name.substr(0, name.find(' '));  // " (deleted)"
    int signal = 0;
    if (!absl::SimpleAtoi(absl::string_view(name.data(), name.size()), &signal) ||
        signal < SIGRTMIN || signal > SIGRTMAX || !Handles(folder, signal)) {
      continue;
    }
    FileDescriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (file.is_open()) return StackMemory{std::move(file), signal};
  }
  return std::nullopt;
}

off_t SizeOf(const FileDescriptor& file) {
  struct stat about {};
  return fstat(file.get(), &about) == 0 ? about.st_size : 0;
}

// Waits until something was written and nothing more comes. Returns whether anything was.
bool AwaitAnswer(const FileDescriptor& file, absl::Duration patience) {
  const absl::Time end = absl::Now() + patience;
  for (off_t before = 0;;) {
    const off_t size = SizeOf(file);
    if (size > 0 && (size == before || size >= kMostBytes)) return true;
    if (absl::Now() >= end) return size > 0;
    before = size;
    absl::SleepFor(kPause);
  }
}

std::string ReadAnswer(const FileDescriptor& file) {
  std::string bytes(static_cast<size_t>(std::min(SizeOf(file), kMostBytes)), '\0');
  const ssize_t read = pread(file.get(), bytes.data(), bytes.size(), 0);
  bytes.resize(read > 0 ? static_cast<size_t>(read) : 0);
  std::string text;
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(bytes, '\n', absl::SkipWhitespace()))) {
    absl::StrAppend(&text, PlainText(line), "\n");
  }
  return text;
}

}  // namespace

PythonStack AskForPythonStack(int64_t pid, int64_t known_to_live_ns, absl::Duration patience) {
  const std::string folder = absl::StrCat("/proc/", pid);
  // Opened first, so that the process that is looked at is the one that gets the signal.
  const FileDescriptor process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  const auto state = StateOf(folder);
  // The start is known to a hundredth of a second.
  const double known = static_cast<double>(known_to_live_ns) / kSecond + 0.1;
  if (!process.is_open() || !state.has_value() || state->letter == 'Z' || state->began > known) {
    return {"", "it has ended"};
  }
  if (state->letter == 'T' || state->letter == 't') {
    return {"", "it is stopped, and answers once it goes on"};
  }
  if (access(absl::StrCat(folder, "/fd").c_str(), R_OK) != 0 && errno == EACCES) {
    return {"", "it is another user's"};
  }
  const auto memory = FindMemory(folder);
  if (!memory.has_value()) return {"", "its program is not Python's, or offers none"};
  // An earlier answer may be there.
  if (ftruncate(memory->file.get(), 0) != 0 ||
      syscall(SYS_pidfd_send_signal, process.get(), memory->signal, nullptr, 0) != 0) {
    return {"", absl::StrCat("it cannot be asked: ", std::strerror(errno))};
  }
  if (!AwaitAnswer(memory->file, patience)) {
    return {"", absl::StrCat("it has not answered within ", absl::FormatDuration(patience))};
  }
  return {ReadAnswer(memory->file), ""};
}

std::string BootId() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

}  // namespace bdn::cli
