#include "common/base/processors.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"

namespace bdn {
namespace {

constexpr int kMostProcessors = 8192;

std::optional<int> Number(std::string_view text) {
  int number = 0;
  const bool is_one = absl::SimpleAtoi(absl::string_view(text.data(), text.size()), &number);
  if (!is_one || number < 0 || number >= kMostProcessors) return std::nullopt;
  return number;
}

std::optional<std::string> FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

// Returns the limit of a control group, in processors; nothing where it has none.
std::optional<double> LimitOf(const std::string& folder) {
  const std::optional<std::string> line = FirstLine(folder + "/cpu.max");
  if (!line.has_value()) return std::nullopt;
  std::istringstream words(*line);
  double quota = 0, period = 0;
  // The quota is "max": no limit.
  if (!(words >> quota >> period) || quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
}

}  // namespace

absl::StatusOr<std::vector<int>> ParseProcessorList(std::string_view text) {
  std::vector<int> processors;
  for (const absl::string_view part :
       absl::StrSplit(absl::string_view(text.data(), text.size()), ',')) {
    const auto wrong = [&] {
      return InvalidArgument("processors '%s': '%s' is neither a number nor a range that rises",
                             text, part);
    };
    const std::string_view range(part.data(), part.size());
    const size_t dash = range.find('-');
    const std::optional<int> first = Number(range.substr(0, dash));
    const std::optional<int> last = dash == range.npos ? first : Number(range.substr(dash + 1));
    if (!first.has_value() || !last.has_value() || *last < *first) return wrong();
    if (!processors.empty() && *first <= processors.back()) return wrong();
    for (int i = *first; i <= *last; ++i) processors.push_back(i);
  }
  return processors;
}

std::string ProcessorListText(const std::vector<int>& processors) {
  std::string text;
  for (size_t i = 0; i < processors.size();) {
    size_t end = i + 1;
    while (end < processors.size() && processors[end] == processors[end - 1] + 1) ++end;
    text += (text.empty() ? "" : ",") + std::to_string(processors[i]);
    if (end - i > 1) text += "-" + std::to_string(processors[end - 1]);
    i = end;
  }
  return text;
}

std::vector<int> AllowedProcessors() {
  // Several sets in a row, because a machine may have more processors than one set holds.
  std::vector<cpu_set_t> sets(kMostProcessors / CPU_SETSIZE);
  const size_t bytes = sets.size() * sizeof(cpu_set_t);
  std::vector<int> processors;
  if (sched_getaffinity(0, bytes, sets.data()) != 0) return {0};
  for (int i = 0; i < kMostProcessors; ++i) {
    if (CPU_ISSET_S(i, bytes, sets.data())) processors.push_back(i);
  }
  return processors;
}

double UsableProcessors(const std::string& root) {
  double usable = static_cast<double>(AllowedProcessors().size());
  std::string group = FirstLine(root + "/proc/self/cgroup").value_or("");
  // A path of version 2; any other text leaves the root group.
  group = group.starts_with("0::/") ? group.substr(3) : "/";
  // Each group around this one may have a lower limit, so all of them are read, up to the root.
  for (;;) {
    const std::optional<double> limit =
        LimitOf(root + "/sys/fs/cgroup" + (group == "/" ? "" : group));
    if (limit.has_value()) usable = std::min(usable, *limit);
    if (group == "/") break;
    group = group.substr(0, std::max<size_t>(group.rfind('/'), 1));
  }
  return std::max(usable, 1.0);
}

absl::StatusOr<std::vector<int>> ReadProcessors(const std::string& text, const std::string& root) {
  const std::vector<int> allowed = AllowedProcessors();
  if (text.empty()) return allowed;
  std::vector<int> wanted;
  if (text.starts_with("node")) {
    const auto list = FirstLine(root + "/sys/devices/system/node/" + text + "/cpulist");
    if (!list.has_value()) return InvalidArgument("processors '%s': there is no such node", text);
    BDN_ASSIGN_OR_RETURN(wanted, ParseProcessorList(*list));
    // The process takes those of the node's processors on which it may run.
    std::erase_if(wanted,
                  [&](int i) { return !std::binary_search(allowed.begin(), allowed.end(), i); });
    if (wanted.empty()) {
      return InvalidArgument("processors '%s': this process may run on %s alone", text,
                             ProcessorListText(allowed));
    }
    return wanted;
  }
  BDN_ASSIGN_OR_RETURN(wanted, ParseProcessorList(text));
  for (const int i : wanted) {
    if (std::binary_search(allowed.begin(), allowed.end(), i)) continue;
    return InvalidArgument("processors '%s': this process may run on %s, not on %d", text,
                           ProcessorListText(allowed), i);
  }
  return wanted;
}

absl::Status KeepToProcessors(const std::vector<int>& processors) {
  std::vector<cpu_set_t> sets(kMostProcessors / CPU_SETSIZE);
  const size_t bytes = sets.size() * sizeof(cpu_set_t);
  std::memset(sets.data(), 0, bytes);
  for (const int i : processors) CPU_SET_S(i, bytes, sets.data());
  if (sched_setaffinity(0, bytes, sets.data()) == 0) return absl::OkStatus();
  return InvalidArgument("keeping to processors %s: %s", ProcessorListText(processors),
                         std::strerror(errno));
}

}  // namespace bdn
