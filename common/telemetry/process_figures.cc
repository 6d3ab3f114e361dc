#include "common/telemetry/process_figures.h"

#include <dirent.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

namespace bdn {
namespace {

// The indices of words in /proc/self/stat, counted from behind the program's name, which may have
// spaces.
constexpr int kUserTicks = 11;
constexpr int kKernelTicks = 12;
constexpr int kThreads = 17;
constexpr int kStartTicks = 19;
constexpr int kResidentPages = 21;

uint64_t CountEntries(const char* path) {
  DIR* directory = opendir(path);
  if (directory == nullptr) return 0;
  uint64_t count = 0;
  while (const dirent* entry = readdir(directory)) count += entry->d_name[0] != '.' ? 1 : 0;
  closedir(directory);
  return count > 0 ? count - 1 : 0;  // without the descriptor that reads the directory
}

// Returns when the machine was booted, in seconds since 1970. The start of a process is told in
// ticks since then.
double BootSeconds() {
  std::ifstream file("/proc/stat");
  for (std::string word; file >> word;) {
    double seconds = 0;
    if (word == "btime" && file >> seconds) return seconds;
  }
  return 0;
}

}  // namespace

ProcessFigures ReadProcessFigures() {
  ProcessFigures figures;
  figures.open_descriptors = CountEntries("/proc/self/fd");
  std::ifstream file("/proc/self/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  // The last ")": the program's name may itself have one.
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return figures;
  std::istringstream rest(text.substr(name_end + 1));
  const double ticks_per_second = static_cast<double>(sysconf(_SC_CLK_TCK));
  std::string word;
  for (int place = 0; rest >> word; ++place) {
    const double value = place == 0 ? 0 : std::strtod(word.c_str(), nullptr);
    if (place == kUserTicks || place == kKernelTicks)
      figures.cpu_seconds += value / ticks_per_second;
    if (place == kThreads) figures.threads = static_cast<uint64_t>(value);
    if (place == kStartTicks) figures.start_seconds = BootSeconds() + value / ticks_per_second;
    if (place == kResidentPages) {
      figures.resident_bytes =
          static_cast<uint64_t>(value) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    }
  }
  return figures;
}

}  // namespace bdn
