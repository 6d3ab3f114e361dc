#ifndef BANDONEON_COMMON_TELEMETRY_HISTORY_FILE_H_
#define BANDONEON_COMMON_TELEMETRY_HISTORY_FILE_H_

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "common/base/clock.h"

namespace bdn {

// The events that one process saw of its job, one JSON object a line, for scripts/check_history
// (setting history-file; docs/survival.md lists the events). Each line is given to the system as it
// is written, so SIGKILL loses none. Thread-safe.
class HistoryFile {
 public:
  // Makes the file PATH.WHO-PID; returns null where `path` is empty. The error names the file.
  static absl::StatusOr<std::unique_ptr<HistoryFile>> Open(const std::string& path,
                                                           std::string_view who);
  ~HistoryFile();
  HistoryFile(const HistoryFile&) = delete;
  HistoryFile& operator=(const HistoryFile&) = delete;

  // Writes an event, with the time of this machine's steady clock. `members` are further members of
  // the object, each with a comma before it, as `,"step":3`. A line that cannot be written is
  // logged, the first time, and the process goes on.
  void Write(std::string_view event, std::string_view members);

 private:
  HistoryFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}

  const int fd_;
  const std::string path_;
  const SteadyClock clock_;
  std::atomic<bool> has_failed_{false};  // publishes no other memory
};

// Returns a text as a member of an object.
std::string HistoryText(std::string_view name, std::string_view text);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TELEMETRY_HISTORY_FILE_H_
