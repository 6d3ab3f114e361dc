#include "common/base/log.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/time/clock.h"
#include "common/base/log_context.h"
#include "common/base/log_writer.h"
#include "common/base/mutex.h"
#include "common/base/status.h"

namespace bdn {
namespace {

// The time that lines get to be written while a process ends.
constexpr absl::Duration kTimeAtExit = absl::Seconds(1);

// The log of the process: the one mutable global. It is never destroyed, so that late threads may
// still log.
struct Log {
  std::atomic<LogLevel> level{LogLevel::kWarning};  // publishes no other memory
  Mutex mu;
  std::string who ABSL_GUARDED_BY(mu) = "bandoneon";
};
Log& Process() {
  static auto* log = new Log;
  return *log;
}

std::string Formatted(LogLevel level, const std::string& line);

LogWriter* NewWriter() {
  return new LogWriter({.gap_line = [](uint64_t dropped) {
    return Formatted(LogLevel::kWarning,
                     absl::StrFormat("the log has a gap here: %d line(s) were dropped, because "
                                     "nobody took what was written to standard error",
                                     dropped));
  }});
}

// The process's writer. A child made by fork, which has none of its parent's threads, swaps in a
// new one; a thread that logs acquires it.
std::atomic<LogWriter*>& WriterPlace() {
  static auto* const place = [] {
    auto* made = new std::atomic<LogWriter*>(NewWriter());
    pthread_atfork(nullptr, nullptr, [] { WriterPlace().store(NewWriter()); });
    std::atexit([] { FlushLog(kTimeAtExit); });
    return made;
  }();
  return *place;
}
LogWriter& Writer() { return *WriterPlace().load(); }

// Escapes control characters, which would begin lines that look like others' or move a terminal's
// cursor.
std::string OnOneLine(const std::string& text) {
  std::string line;
  line.reserve(text.size());
  for (const char c : text) {
    if (c == '\n') {
      line += "\\n";
    } else if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) {
      absl::StrAppendFormat(&line, "\\x%02x", static_cast<uint8_t>(c));
    } else {
      line += c;
    }
  }
  return line;
}

// Returns "2026-05-01 12:00:00.123 W server 0: line" or a JSON object, with the end of the line.
std::string Formatted(LogLevel level, const std::string& line) {
  std::string who;
  {
    Log& log = Process();
    MutexLock lock(&log.mu);
    who = log.who;
  }
  if (CurrentLogFormat() == LogFormat::kJson) {
    return JsonLogLine(absl::Now(), level, who, line) + "\n";
  }
  constexpr char kLetters[] = "DIWE";  // by level
  return absl::StrFormat(
      "%s %c %s: %s\n", absl::FormatTime("%Y-%m-%d %H:%M:%E3S", absl::Now(), absl::LocalTimeZone()),
      kLetters[static_cast<int>(level)], who, OnOneLine(line));
}

}  // namespace

void InitLog(LogLevel level, std::string_view who) {
  Log& log = Process();
  log.level.store(level, std::memory_order_relaxed);
  MutexLock lock(&log.mu);
  log.who = who;
}

absl::Status ParseLogLevel(std::string_view text, LogLevel* level) {
  constexpr struct {
    const char* name;
    LogLevel level;
  } kNames[] = {{"debug", LogLevel::kDebug},
                {"info", LogLevel::kInfo},
                {"warning", LogLevel::kWarning},
                {"error", LogLevel::kError},
                {"off", LogLevel::kOff}};
  for (const auto& entry : kNames) {
    if (text == entry.name) {
      *level = entry.level;
      return absl::OkStatus();
    }
  }
  return InvalidArgument("log level '%s' is none of debug, info, warning, error, off",
                         std::string(text));
}

void LogLine(LogLevel level, const std::string& line) {
  if (level < Process().level.load(std::memory_order_relaxed)) return;
  Writer().Write(Formatted(level, line));
}

void LogPlain(std::string text) { Writer().Write(std::move(text)); }

bool FlushLog(absl::Duration most) { return Writer().Flush(most); }

}  // namespace bdn
