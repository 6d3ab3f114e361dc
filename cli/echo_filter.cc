#include "cli/echo_filter.h"

#include <utility>

namespace bdn::cli {
namespace {

constexpr std::string_view kTraceback = "Traceback (most recent call last):";
constexpr size_t kMostLines = 10000;  // of one traceback
// "2026-11-25 13:25:23.976 E scheduler: ..."
constexpr size_t kLevelAt = 24;

bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool IsLog(std::string_view line) {
  return line.size() > kLevelAt + 2 && line[4] == '-' && line[10] == ' ' &&
         line[kLevelAt - 1] == ' ' && line[kLevelAt + 1] == ' ';
}

}  // namespace

std::vector<std::string> EchoFilter::Pass(size_t process, std::string_view line) {
  const auto held = held_.find(process);
  if (held == held_.end()) {
    if (line != kTraceback) {
      if (IsLog(line) && IsEchoOfLog(process, line)) return {};
      return {std::string(line)};
    }
    held_[process] = {std::string(line)};
    return {};
  }
  held->second.emplace_back(line);
  // Lines of a traceback are indented; the first that is not names the exception.
  const bool goes_on = line.empty() || line.front() == ' ';
  if (goes_on && held->second.size() < kMostLines) return {};
  std::vector<std::string> all = Flush(process);
  if (!goes_on && IsEcho(line)) return {};
  return all;
}

std::vector<std::string> EchoFilter::Flush(size_t process) {
  const auto held = held_.find(process);
  if (held == held_.end()) return {};
  std::vector<std::string> lines = std::move(held->second);
  held_.erase(held);
  return lines;
}

bool EchoFilter::IsEcho(std::string_view exception) const {
  if (is_interrupted_ && exception.rfind("KeyboardInterrupt", 0) == 0) return true;
  return exception.rfind("bandoneon.errors.JobFailed: ", 0) == 0;
}

bool EchoFilter::IsEchoOfLog(size_t process, std::string_view line) {
  const char level = line[kLevelAt];
  if (is_interrupted_ && level == 'I') return true;
  const size_t colon = line.find(": ", kLevelAt);
  if (level != 'E' || colon == std::string_view::npos) return false;
  std::string_view message = line.substr(colon + 2);
  for (const std::string_view prefix : {"the job failed: ", "leaving the job: "}) {
    if (message.rfind(prefix, 0) == 0) message.remove_prefix(prefix.size());
  }
  if (is_interrupted_ && Contains(message, "KeyboardInterrupt")) return true;
  // Only other processes repeat: when one process says the same twice it has happened twice.
  for (const auto& [other, said] : said_) {
    if (other == process) continue;
    if (Contains(said, message) || Contains(message, said)) return true;
  }
  said_.emplace_back(process, message);
  return false;
}

}  // namespace bdn::cli
