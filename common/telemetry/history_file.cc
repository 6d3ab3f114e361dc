#include "common/telemetry/history_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/escaped_text.h"
#include "common/base/log.h"
#include "common/base/status.h"

namespace bdn {

absl::StatusOr<std::unique_ptr<HistoryFile>> HistoryFile::Open(const std::string& path,
                                                               std::string_view who) {
  if (path.empty()) return nullptr;
  std::string name = absl::StrFormat("%s.%s-%d", path, who, getpid());
  const int fd = open(name.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) {
    return InvalidArgument("history-file: %s cannot be written: %s", name, strerror(errno));
  }
  return std::unique_ptr<HistoryFile>(new HistoryFile(fd, std::move(name)));
}

HistoryFile::~HistoryFile() { close(fd_); }

void HistoryFile::Write(std::string_view event, std::string_view members) {
  const std::string line =
      absl::StrFormat("{\"at\":%.6f,\"event\":\"%s\"%s}\n",
                      absl::ToDoubleSeconds(clock_.Now() - absl::UnixEpoch()), event, members);
  // One call with O_APPEND puts the whole line behind those of other threads.
  ssize_t written;
  do {
    written = write(fd_, line.data(), line.size());
  } while (written < 0 && errno == EINTR);
  if (written != static_cast<ssize_t>(line.size()) && !has_failed_.exchange(true)) {
    LogWarning("%s lacks lines: %s", path_, written < 0 ? strerror(errno) : "the disk is full");
  }
}

std::string HistoryText(std::string_view name, std::string_view text) {
  std::string member = absl::StrFormat(",\"%s\":", name);
  AppendJsonText(text, &member);
  return member;
}

}  // namespace bdn
