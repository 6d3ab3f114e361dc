#include "common/telemetry/system_samples.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>

#include "absl/strings/str_format.h"

namespace bdn {
namespace {

// Descriptors are dear where a job has many connections, so not more than these are kept open.
constexpr size_t kMostThreads = 128;

std::string ReadFromStart(int fd, size_t most) {
  std::string text(most, '\0');
  const ssize_t bytes = pread(fd, text.data(), text.size(), 0);
  text.resize(bytes > 0 ? static_cast<size_t>(bytes) : 0);
  return text;
}

// Reads the numbers with which a text begins, and returns how many there are.
template <size_t kMost>
size_t ReadNumbers(std::string_view text, std::array<uint64_t, kMost>* numbers) {
  size_t count = 0;
  while (count < kMost) {
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
    const auto [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), (*numbers)[count]);
    if (error != std::errc()) break;
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    ++count;
  }
  return count;
}

}  // namespace

std::string ReadProcLine(const char* path) {
  const FileDescriptor file(open(path, O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) return "";
  const std::string text = ReadFromStart(file.get(), 4096);
  return text.substr(0, text.find('\n'));
}

std::vector<TraceRecord> SystemSamples::Take(int64_t now_ns, Recording* recording) {
  std::vector<TraceRecord> records;
  TakeThreads(now_ns, recording, &records);
  TakeMachine(now_ns, &records);
  return records;
}

void SystemSamples::TakeThreads(int64_t now_ns, Recording* recording,
                                std::vector<TraceRecord>* records) {
  ++calls_;
  const std::unique_ptr<DIR, int (*)(DIR*)> tasks(opendir("/proc/self/task"), closedir);
  if (tasks == nullptr) return;
  while (const dirent* const entry = readdir(tasks.get())) {
    std::array<uint64_t, 1> number = {};
    if (ReadNumbers(entry->d_name, &number) != 1) continue;  // "." and ".."
    const auto id = static_cast<uint32_t>(number[0]);
    auto known = threads_.find(id);
    if (known == threads_.end()) {
      if (threads_.size() == kMostThreads) continue;
      const std::string of = absl::StrFormat("/proc/self/task/%d/", id);
      Thread thread;
      thread.schedstat = FileDescriptor(open((of + "schedstat").c_str(), O_RDONLY | O_CLOEXEC));
      if (!thread.schedstat.is_open()) continue;
      thread.place = recording->PlaceOfThread(id, ReadProcLine((of + "comm").c_str()));
      known = threads_.emplace(id, std::move(thread)).first;
    }
    Thread& thread = known->second;
    std::array<uint64_t, 2> numbers = {};
    // A file of a thread that has ended cannot be read, and its entry goes below.
    if (ReadNumbers(ReadFromStart(thread.schedstat.get(), 128), &numbers) != 2) continue;
    thread.seen = calls_;
    if (thread.at_ns != 0) {
      records->push_back(
          {.begin_ns = thread.at_ns,
           .wall_ns = static_cast<uint64_t>(std::max<int64_t>(0, now_ns - thread.at_ns)),
           .key = RiseOf(thread.ran_ns, numbers[0]),
           .step = RiseOf(thread.queued_ns, numbers[1]),
           .peer = thread.place,
           .kind = static_cast<uint8_t>(TraceKind::kThreadSample)});
    }
    thread.ran_ns = numbers[0];
    thread.queued_ns = numbers[1];
    thread.at_ns = now_ns;
  }
  absl::erase_if(threads_, [this](const auto& entry) { return entry.second.seen != calls_; });
}

void SystemSamples::TakeMachine(int64_t now_ns, std::vector<TraceRecord>* records) {
  Machine now;
  if (!ReadMachine(&now)) return;
  if (machine_at_ns_ != 0) {
    records->push_back(
        {.begin_ns = machine_at_ns_,
         .wall_ns = static_cast<uint64_t>(std::max<int64_t>(0, now_ns - machine_at_ns_)),
         .key = RiseOf(machine_.busy_ns, now.busy_ns),
         .step = RiseOf(machine_.idle_ns, now.idle_ns),
         .bytes = now.runnable,
         .kind = static_cast<uint8_t>(TraceKind::kMachineSample)});
  }
  machine_ = now;
  machine_at_ns_ = now_ns;
}

bool SystemSamples::ReadMachine(Machine* machine) {
  const std::string stat = ReadProcLine("/proc/stat");
  // cpu user nice system idle iowait irq softirq steal
  std::array<uint64_t, 8> ticks = {};
  if (!stat.starts_with("cpu ") || ReadNumbers(std::string_view(stat).substr(4), &ticks) < 5) {
    return false;
  }
  const uint64_t tick_ns = 1'000'000'000 / static_cast<uint64_t>(sysconf(_SC_CLK_TCK));
  machine->idle_ns = (ticks[3] + ticks[4]) * tick_ns;
  machine->busy_ns = (ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6] + ticks[7]) * tick_ns;
  // "0.52 0.58 0.59 3/467 12345": the runnable before the slash.
  const std::string load = ReadProcLine("/proc/loadavg");
  const size_t slash = load.find('/');
  const size_t space = slash == std::string::npos ? slash : load.rfind(' ', slash);
  std::array<uint64_t, 1> runnable = {};
  if (space != std::string::npos) ReadNumbers(std::string_view(load).substr(space), &runnable);
  machine->runnable = static_cast<uint32_t>(runnable[0]);
  return true;
}

}  // namespace bdn
